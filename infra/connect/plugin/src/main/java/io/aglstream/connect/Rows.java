package io.aglstream.connect;

import io.aglstream.connect.Projection.Column;
import java.time.Instant;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.sink.SinkRecord;

/**
 * Records as rows of flat columns: none for a tombstone, one for a record, or one for each item of an array.
 *
 * <p>What a row says depends on the record alone, so the same record gives the same rows again.
 */
final class Rows {
    private static final int MAX_SHAPES = 1_000;
    private static final String OCCURRED_AT = "occurred_at";
    private static final String LOG_PARTITION = "log_partition";
    private static final String LOG_OFFSET = "log_offset";

    /** How one schema becomes rows: columns read from the record, then columns read from an item. */
    private record Shape(List<Column> ofRecord, Field array, List<Column> ofItem, Schema row) {}

    private final RowsConfig config;
    // By identity: the converter hands out one object for a schema, and comparing schemas costs more than a row.
    private final Map<Schema, Shape> shapes = new IdentityHashMap<>();

    Rows(RowsConfig config) {
        this.config = config;
    }

    /** The rows of a record, as records at its place in the log. DataException for a value without columns. */
    List<SinkRecord> of(SinkRecord record) {
        if (record.value() == null) {
            return List.of();
        }
        if (!(record.value() instanceof Struct struct)) {
            throw new DataException("the value is no record with fields but " + record.value().getClass().getSimpleName()
                + "; set value.converter to " + AvroConverter.class.getName());
        }
        Shape shape = shape(struct.schema());
        List<SinkRecord> rows = new ArrayList<>();
        if (shape.array() == null) {
            rows.add(row(record, shape, struct, null));
        } else if (struct.get(shape.array()) instanceof List<?> items) {
            for (Object item : items) {
                rows.add(row(record, shape, struct, (Struct) item));
            }
        }
        return rows;
    }

    private SinkRecord row(SinkRecord record, Shape shape, Struct struct, Struct item) {
        Struct row = new Struct(shape.row());
        put(row, shape.ofRecord(), struct);
        if (item != null) {
            put(row, shape.ofItem(), item);
        }
        if (config.getBoolean(RowsConfig.POSITION)) {
            row.put(LOG_PARTITION, record.originalKafkaPartition());
            row.put(LOG_OFFSET, record.originalKafkaOffset());
        }
        // An event that does not say when it happened happened when the log took it.
        Field occurred = shape.row().field(OCCURRED_AT);
        if (occurred != null && row.get(occurred) == null && record.timestamp() != null) {
            row.put(occurred, Instant.ofEpochMilli(record.timestamp()).toString());
        }
        for (String key : config.keys()) {
            if (shape.row().field(key) == null || row.get(key) == null) {
                throw new DataException("the record has no value for " + key + ", which primary.key.fields names");
            }
        }
        return record.newRecord(record.topic(), record.kafkaPartition(), null, null, shape.row(), row, record.timestamp());
    }

    private static void put(Struct row, List<Column> columns, Struct from) {
        for (Column column : columns) {
            row.put(column.name(), column.read().apply(from));
        }
    }

    private Shape shape(Schema schema) {
        if (shapes.size() >= MAX_SHAPES) {
            shapes.clear();
        }
        return shapes.computeIfAbsent(schema, this::newShape);
    }

    private Shape newShape(Schema schema) {
        String explode = config.explode();
        List<Column> ofRecord = Projection.columns(schema, config, explode);
        Field array = null;
        List<Column> ofItem = List.of();
        if (!explode.isEmpty()) {
            array = schema.field(explode);
            if (array == null || array.schema().type() != Schema.Type.ARRAY
                || array.schema().valueSchema().type() != Schema.Type.STRUCT) {
                throw new DataException(schema.name() + " has no array of records " + explode
                    + ", which " + RowsConfig.EXPLODE + " names");
            }
            ofRecord = chosen(ofRecord);
            ofItem = Projection.columns(array.schema().valueSchema(), config, "");
        }
        SchemaBuilder row = SchemaBuilder.struct().name(schema.name() + (array == null ? "" : "." + explode));
        ofRecord.forEach(column -> row.field(column.name(), column.schema()));
        ofItem.forEach(column -> row.field(column.name(), column.schema()));
        if (config.getBoolean(RowsConfig.POSITION)) {
            row.field(LOG_PARTITION, Schema.INT32_SCHEMA).field(LOG_OFFSET, Schema.INT64_SCHEMA);
        }
        return new Shape(ofRecord, array, ofItem, row.build());
    }

    /** The columns that {@code rows.parent} names, in its order; one that an older schema lacks is left out. */
    private List<Column> chosen(List<Column> columns) {
        List<Column> chosen = new ArrayList<>();
        config.parent().forEach((name, as) -> columns.stream()
            .filter(column -> column.name().equals(name))
            .forEach(column -> chosen.add(column.renamed(as))));
        return chosen;
    }
}
