package io.aglstream.connect;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Base64;
import java.util.Collection;
import java.util.Date;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Struct;

/**
 * Connect's values as JSON on one line.
 *
 * <p>Bytes are base64, unless their field is named as little-endian int32 or float32 numbers: then they are an array.
 * Times are ISO 8601 in UTC. NaN and infinities, which JSON lacks, are null.
 */
final class JsonText {
    private static final JsonFactory JSON = new JsonFactory();

    private final Set<String> int32Fields;
    private final Set<String> float32Fields;
    private final Set<String> excluded;
    private final boolean keepsNul;

    JsonText(Set<String> int32Fields, Set<String> float32Fields, Set<String> excluded) {
        this.int32Fields = int32Fields;
        this.float32Fields = float32Fields;
        this.excluded = excluded;
        this.keepsNul = true;
    }

    /** For a database, whose text cannot hold the character NUL: the replacement character stands for it. */
    JsonText() {
        this.int32Fields = Set.of();
        this.float32Fields = Set.of();
        this.excluded = Set.of();
        this.keepsNul = false;
    }

    String of(Object value) {
        StringWriter text = new StringWriter();
        try (JsonGenerator json = JSON.createGenerator(text)) {
            write(json, "", value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return text.toString();
    }

    private void write(JsonGenerator json, String field, Object value) throws IOException {
        if (value == null) {
            json.writeNull();
        } else if (value instanceof Struct struct) {
            json.writeStartObject();
            for (Field member : struct.schema().fields()) {
                if (!excluded.contains(member.name())) {
                    json.writeFieldName(member.name());
                    write(json, member.name(), struct.get(member));
                }
            }
            json.writeEndObject();
        } else if (value instanceof Map<?, ?> map) {
            json.writeStartObject();
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                json.writeFieldName(String.valueOf(entry.getKey()));
                write(json, "", entry.getValue());
            }
            json.writeEndObject();
        } else if (value instanceof Collection<?> items) {
            json.writeStartArray();
            for (Object item : items) {
                write(json, field, item);
            }
            json.writeEndArray();
        } else if (value instanceof byte[] bytes) {
            writeBytes(json, field, ByteBuffer.wrap(bytes));
        } else if (value instanceof ByteBuffer bytes) {
            writeBytes(json, field, bytes.duplicate());
        } else {
            writeScalar(json, value);
        }
    }

    private void writeScalar(JsonGenerator json, Object value) throws IOException {
        if (value instanceof Double || value instanceof Float) {
            double number = ((Number) value).doubleValue();
            if (!Double.isFinite(number)) {
                json.writeNull();
            } else if (value instanceof Float single) {
                json.writeNumber(single);
            } else {
                json.writeNumber(number);
            }
        } else if (value instanceof BigDecimal number) {
            json.writeNumber(number);
        } else if (value instanceof Number number) {
            json.writeNumber(number.longValue());
        } else if (value instanceof Boolean truth) {
            json.writeBoolean(truth);
        } else if (value instanceof Date time) {
            json.writeString(time.toInstant().toString());
        } else {
            json.writeString(keepsNul ? value.toString() : value.toString().replace('\0', '\ufffd'));
        }
    }

    private void writeBytes(JsonGenerator json, String field, ByteBuffer bytes) throws IOException {
        bytes.order(ByteOrder.LITTLE_ENDIAN);
        // All numbers here have four bytes; what does not divide into them is no such array.
        boolean divides = bytes.remaining() % Integer.BYTES == 0;
        if (divides && int32Fields.contains(field)) {
            json.writeStartArray();
            while (bytes.hasRemaining()) {
                json.writeNumber(bytes.getInt());
            }
            json.writeEndArray();
        } else if (divides && float32Fields.contains(field)) {
            json.writeStartArray();
            while (bytes.hasRemaining()) {
                writeScalar(json, bytes.getFloat());
            }
            json.writeEndArray();
        } else {
            byte[] raw = new byte[bytes.remaining()];
            bytes.get(raw);
            json.writeString(Base64.getEncoder().encodeToString(raw));
        }
    }
}
