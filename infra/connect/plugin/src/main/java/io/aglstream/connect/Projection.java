package io.aglstream.connect;

import java.nio.ByteBuffer;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;

/**
 * The columns of a struct schema: how each is named, typed and read.
 *
 * <p>A nested record's fields become columns NAME_FIELD. Arrays and maps become JSON. An int64 NAME_at_us becomes the
 * timestamp NAME_at, where 0 means that nobody said when. Bytes named in {@link RowsConfig#COUNTS} become the count of
 * the numbers in them. Every column may be null but those of the primary key, so that a column can be added to a table
 * that has rows.
 */
final class Projection {
    // Semantic types that Debezium's JDBC sink knows: json and timestamptz columns in PostgreSQL.
    private static final Schema JSON = SchemaBuilder.string().name("io.debezium.data.Json").optional().build();
    private static final String ZONED_TIMESTAMP = "io.debezium.time.ZonedTimestamp";
    private static final JsonText JSON_TEXT = new JsonText();

    /** One column; `read` takes the struct. */
    record Column(String name, Schema schema, Function<Struct, Object> read) {
        Column renamed(String other) {
            return new Column(other, schema, read);
        }
    }

    private final RowsConfig config;
    private final List<Column> columns = new ArrayList<>();

    private Projection(RowsConfig config) {
        this.config = config;
    }

    /** The columns of {@code schema} in its order, without {@code exploded} and the excluded fields. */
    static List<Column> columns(Schema schema, RowsConfig config, String exploded) {
        Projection projection = new Projection(config);
        projection.add(schema, "", struct -> struct, exploded);
        return projection.columns;
    }

    private void add(Schema schema, String prefix, Function<Struct, Struct> parent, String exploded) {
        for (Field field : schema.fields()) {
            String path = prefix + field.name();
            if (path.equals(exploded) || config.excluded().contains(path)) {
                continue;
            }
            Function<Struct, Object> read = struct -> {
                Struct owner = parent.apply(struct);
                return owner == null ? null : owner.get(field);
            };
            if (field.schema().type() == Schema.Type.STRUCT) {
                add(field.schema(), path + "_", struct -> (Struct) read.apply(struct), "");
            } else {
                columns.add(column(path, field.schema(), read));
            }
        }
    }

    private Column column(String path, Schema schema, Function<Struct, Object> read) {
        String timestamp = RowsConfig.timestampColumn(path);
        String count = config.counts().get(path);
        if (timestamp != null && schema.type() == Schema.Type.INT64) {
            return new Column(timestamp, typed(timestamp, SchemaBuilder.string().name(ZONED_TIMESTAMP)),
                struct -> instant((Long) read.apply(struct)));
        }
        if (count != null && schema.type() == Schema.Type.BYTES) {
            return new Column(count, typed(count, SchemaBuilder.int32()), struct -> count(read.apply(struct)));
        }
        return switch (schema.type()) {
            case ARRAY, MAP -> new Column(path, JSON, struct -> {
                Object value = read.apply(struct);
                return value == null ? null : JSON_TEXT.of(value);
            });
            case STRING -> new Column(path, typed(path, named(schema)), struct -> textual((String) read.apply(struct)));
            default -> new Column(path, typed(path, named(schema)), read);
        };
    }

    private static SchemaBuilder named(Schema schema) {
        SchemaBuilder builder = new SchemaBuilder(schema.type());
        if (schema.name() != null) {
            builder.name(schema.name());
        }
        if (schema.parameters() != null) {
            builder.parameters(schema.parameters());
        }
        return builder;
    }

    private Schema typed(String column, SchemaBuilder builder) {
        return (config.keys().contains(column) ? builder : builder.optional()).build();
    }

    /** PostgreSQL's text cannot hold the character NUL; the replacement character stands for it. */
    private static String textual(String text) {
        return text == null || text.indexOf('\0') < 0 ? text : text.replace('\0', '\ufffd');
    }

    private static String instant(Long microseconds) {
        return microseconds == null || microseconds == 0
            ? null : Instant.EPOCH.plus(microseconds, ChronoUnit.MICROS).toString();
    }

    private static Integer count(Object bytes) {
        if (bytes == null) {
            return null;
        }
        int length = bytes instanceof ByteBuffer buffer ? buffer.remaining() : ((byte[]) bytes).length;
        return length / Integer.BYTES;
    }
}
