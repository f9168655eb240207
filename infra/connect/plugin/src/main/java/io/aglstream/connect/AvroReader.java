package io.aglstream.connect;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.avro.LogicalTypes;
import org.apache.kafka.connect.data.Date;
import org.apache.kafka.connect.data.Decimal;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.data.Time;
import org.apache.kafka.connect.data.Timestamp;
import org.apache.kafka.connect.errors.DataException;

/**
 * Avro's binary encoding (Avro specification 1.12, "Binary Encoding") straight into Connect's values.
 *
 * <p>Lengths and counts are checked against the bytes that are left before anything is allocated, so that a hostile
 * record costs no more memory than its own size allows. For the same reason an array of items that take no bytes
 * (records without fields) may have no more items than bytes follow it. Every fault is a DataException.
 */
final class AvroReader {
    private static final int MAX_VARINT_BYTES = 10;

    private final byte[] data;
    private int position;

    AvroReader(byte[] data, int start) {
        this.data = data;
        this.position = start;
    }

    /** The value of {@code avro} at this place; {@code connect} is {@link ConnectSchemas#of} it. */
    Object read(org.apache.avro.Schema avro, Schema connect) {
        return switch (avro.getType()) {
            case RECORD -> readRecord(avro, connect);
            case UNION -> readUnion(avro, connect);
            case ARRAY -> readArray(avro, connect);
            case MAP -> readMap(avro, connect);
            case ENUM -> symbol(avro, readLong());
            case STRING -> readString();
            case BYTES -> bytes(avro, take(readLong()));
            case FIXED -> bytes(avro, take(avro.getFixedSize()));
            case INT -> integer(avro, readInt());
            case LONG -> avro.getLogicalType() instanceof LogicalTypes.TimestampMillis
                ? Timestamp.toLogical(Timestamp.SCHEMA, readLong()) : (Object) readLong();
            case FLOAT -> ByteBuffer.wrap(take(Float.BYTES)).order(ByteOrder.LITTLE_ENDIAN).getFloat();
            case DOUBLE -> ByteBuffer.wrap(take(Double.BYTES)).order(ByteOrder.LITTLE_ENDIAN).getDouble();
            case BOOLEAN -> bool(take(1)[0]);
            case NULL -> null;
        };
    }

    /** Raises DataException when bytes are left over. */
    void expectEnd() {
        if (position != data.length) {
            throw new DataException((data.length - position) + " bytes are left over");
        }
    }

    private Struct readRecord(org.apache.avro.Schema avro, Schema connect) {
        Struct struct = new Struct(connect);
        List<Field> fields = connect.fields();
        int index = 0;
        for (org.apache.avro.Schema.Field field : avro.getFields()) {
            Field target = fields.get(index++);
            struct.put(target, read(field.schema(), target.schema()));
        }
        return struct;
    }

    private Object readUnion(org.apache.avro.Schema avro, Schema connect) {
        long index = readLong();
        List<org.apache.avro.Schema> branches = avro.getTypes();
        if (index < 0 || index >= branches.size()) {
            throw new DataException("union branch " + index + " of " + branches.size());
        }
        org.apache.avro.Schema branch = branches.get((int) index);
        if (branch.getType() == org.apache.avro.Schema.Type.NULL) {
            return null;
        }
        if (ConnectSchemas.optionalBranch(avro) != null) {
            return read(branch, connect);
        }
        Field field = connect.field(ConnectSchemas.branchName(branch));
        return new Struct(connect).put(field, read(branch, field.schema()));
    }

    private List<Object> readArray(org.apache.avro.Schema avro, Schema connect) {
        List<Object> items = new ArrayList<>();
        readBlocks(ignored -> items.add(read(avro.getElementType(), connect.valueSchema())));
        return items;
    }

    private Map<String, Object> readMap(org.apache.avro.Schema avro, Schema connect) {
        Map<String, Object> entries = new LinkedHashMap<>();
        readBlocks(ignored -> {
            String key = readString();
            entries.put(key, read(avro.getValueType(), connect.valueSchema()));
        });
        return entries;
    }

    private void readBlocks(Consumer<Void> readItem) {
        for (long count = readLong(); count != 0; count = readLong()) {
            if (count < 0) {
                readLong(); // The block's size in bytes, for readers that skip it.
            }
            long items = Math.abs(count);
            if (items < 0 || items > data.length - position) {
                throw new DataException("a block of " + count + " items where " + (data.length - position) + " bytes are left");
            }
            for (long item = 0; item < items; item++) {
                readItem.accept(null);
            }
        }
    }

    private long readLong() {
        long value = 0;
        for (int index = 0; index < MAX_VARINT_BYTES; index++) {
            byte next = take(1)[0];
            value |= (long) (next & 0x7f) << (7 * index);
            if (next >= 0) {
                return (value >>> 1) ^ -(value & 1);
            }
        }
        throw new DataException("a number longer than " + MAX_VARINT_BYTES + " bytes");
    }

    private int readInt() {
        long value = readLong();
        if (value != (int) value) {
            throw new DataException(value + " does not fit an int");
        }
        return (int) value;
    }

    private byte[] take(long length) {
        if (length < 0 || length > data.length - position) {
            throw new DataException(length + " bytes are wanted where " + (data.length - position) + " are left");
        }
        byte[] taken = Arrays.copyOfRange(data, position, position + (int) length);
        position += (int) length;
        return taken;
    }

    private String readString() {
        try {
            CharBuffer text = StandardCharsets.UTF_8.newDecoder()
                .onMalformedInput(CodingErrorAction.REPORT)
                .decode(ByteBuffer.wrap(take(readLong())));
            return text.toString();
        } catch (CharacterCodingException error) {
            throw new DataException("a string is not UTF-8", error);
        }
    }

    private static boolean bool(byte value) {
        if (value != 0 && value != 1) {
            throw new DataException(value + " is no boolean");
        }
        return value == 1;
    }

    private static String symbol(org.apache.avro.Schema avro, long index) {
        if (index < 0 || index >= avro.getEnumSymbols().size()) {
            throw new DataException("enum " + avro.getFullName() + " has no symbol number " + index);
        }
        return avro.getEnumSymbols().get((int) index);
    }

    private static Object integer(org.apache.avro.Schema avro, int value) {
        if (avro.getLogicalType() instanceof LogicalTypes.Date) {
            return Date.toLogical(Date.SCHEMA, value);
        }
        if (avro.getLogicalType() instanceof LogicalTypes.TimeMillis) {
            return Time.toLogical(Time.SCHEMA, value);
        }
        return value;
    }

    private static Object bytes(org.apache.avro.Schema avro, byte[] value) {
        if (avro.getLogicalType() instanceof LogicalTypes.Decimal decimal) {
            if (value.length == 0) {
                throw new DataException("a decimal of no bytes");
            }
            return Decimal.toLogical(Decimal.schema(decimal.getScale()), value);
        }
        return value;
    }
}
