package io.aglstream.connect;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import org.apache.avro.LogicalType;
import org.apache.avro.LogicalTypes;
import org.apache.kafka.connect.data.Date;
import org.apache.kafka.connect.data.Decimal;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Time;
import org.apache.kafka.connect.data.Timestamp;
import org.apache.kafka.connect.errors.DataException;

/**
 * Avro schemas as Connect schemas.
 *
 * <p>A union of null and one other type is that type, optional. A union of several is a struct with one optional field
 * a branch, of which one is set. Enums are strings; fixed is bytes; microsecond times are plain int64, since Connect's
 * own times have milliseconds. Schemas that contain themselves have no form in Connect and are refused.
 */
final class ConnectSchemas {
    static final int MAX_DEPTH = 64;

    private final Deque<String> open = new ArrayDeque<>();

    private ConnectSchemas() {}

    /** Raises DataException for what Connect has no form for. */
    static Schema of(org.apache.avro.Schema avro) {
        return new ConnectSchemas().convert(avro, false, 0);
    }

    /** The branch beside null in a union of two; null when the schema is no such union. */
    static org.apache.avro.Schema optionalBranch(org.apache.avro.Schema avro) {
        if (!avro.isUnion() || avro.getTypes().size() != 2 || !avro.isNullable()) {
            return null;
        }
        List<org.apache.avro.Schema> types = avro.getTypes();
        return types.get(0).getType() == org.apache.avro.Schema.Type.NULL ? types.get(1) : types.get(0);
    }

    /** Name of a branch's field in the struct that stands for a union. */
    static String branchName(org.apache.avro.Schema branch) {
        return branch.getName();
    }

    private Schema convert(org.apache.avro.Schema avro, boolean optional, int depth) {
        if (depth > MAX_DEPTH) {
            throw new DataException("the schema is nested more than " + MAX_DEPTH + " deep");
        }
        SchemaBuilder builder = switch (avro.getType()) {
            case RECORD -> record(avro, depth);
            case UNION -> union(avro, depth);
            case ARRAY -> SchemaBuilder.array(convert(avro.getElementType(), false, depth + 1));
            case MAP -> SchemaBuilder.map(Schema.STRING_SCHEMA, convert(avro.getValueType(), false, depth + 1));
            case ENUM, STRING -> SchemaBuilder.string();
            case NULL -> SchemaBuilder.string().optional();
            default -> scalar(avro);
        };
        if (builder == null) {
            return convert(optionalBranch(avro), true, depth + 1);
        }
        return (optional && !builder.isOptional() ? builder.optional() : builder).build();
    }

    private static SchemaBuilder scalar(org.apache.avro.Schema avro) {
        LogicalType logical = avro.getLogicalType();
        return switch (avro.getType()) {
            case BOOLEAN -> SchemaBuilder.bool();
            case FLOAT -> SchemaBuilder.float32();
            case DOUBLE -> SchemaBuilder.float64();
            case INT -> logical instanceof LogicalTypes.Date ? Date.builder()
                : logical instanceof LogicalTypes.TimeMillis ? Time.builder() : SchemaBuilder.int32();
            case LONG -> logical instanceof LogicalTypes.TimestampMillis ? Timestamp.builder() : SchemaBuilder.int64();
            case BYTES, FIXED -> logical instanceof LogicalTypes.Decimal decimal
                ? Decimal.builder(decimal.getScale()) : SchemaBuilder.bytes();
            default -> throw new DataException("Avro type " + avro.getType() + " has no form in Connect");
        };
    }

    private SchemaBuilder record(org.apache.avro.Schema avro, int depth) {
        if (open.contains(avro.getFullName())) {
            throw new DataException("record " + avro.getFullName() + " contains itself, which Connect cannot express");
        }
        open.push(avro.getFullName());
        SchemaBuilder builder = SchemaBuilder.struct().name(avro.getFullName());
        for (org.apache.avro.Schema.Field field : avro.getFields()) {
            builder.field(field.name(), convert(field.schema(), false, depth + 1));
        }
        open.pop();
        return builder;
    }

    /** Null for a union that is only an optional type. */
    private SchemaBuilder union(org.apache.avro.Schema avro, int depth) {
        if (optionalBranch(avro) != null) {
            return null;
        }
        SchemaBuilder builder = SchemaBuilder.struct();
        for (org.apache.avro.Schema branch : avro.getTypes()) {
            if (branch.getType() == org.apache.avro.Schema.Type.NULL) {
                builder.optional();
            } else {
                builder.field(branchName(branch), convert(branch, true, depth + 1));
            }
        }
        return builder;
    }
}
