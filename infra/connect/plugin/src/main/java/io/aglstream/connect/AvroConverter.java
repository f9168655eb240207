package io.aglstream.connect;

import java.nio.ByteBuffer;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.storage.Converter;

/**
 * Reads Avro records that name their schema by the id of a Confluent-compatible registry; for sink connectors.
 *
 * <p>Understood are both places of the id: byte 0 and four bytes before the body, or the same five bytes in the header
 * {@code __value_schema_id} ({@code __key_schema_id}) with the bare body as value. A record is read with the schema it
 * was written with, so a field that a newer schema adds is there from the first record that has it.
 *
 * <p>A record that can never be read (other framing, an id the registry does not have, a body that does not follow its
 * schema) is a DataException, which a connector's dead letter queue takes. A registry that does not answer is a
 * RetriableException: with {@code errors.retry.timeout=-1} the worker asks again until it does. Thread-safe once
 * configured.
 */
public final class AvroConverter implements Converter {
    private static final int FRAME_BYTES = 5;

    private boolean isKey;
    private int maxBodyBytes;
    private RegisteredSchemas schemas;

    @Override
    public void configure(Map<String, ?> properties, boolean isKey) {
        ConverterConfig config = new ConverterConfig(properties);
        this.isKey = isKey;
        this.maxBodyBytes = config.getInt(ConverterConfig.MAX_BODY_BYTES);
        this.schemas = new RegisteredSchemas(config);
    }

    @Override
    public ConfigDef config() {
        return ConverterConfig.DEFINITION;
    }

    /** Refuses everything but null: writing needs schemas to be registered, which sinks never do. */
    @Override
    public byte[] fromConnectData(String topic, Schema schema, Object value) {
        if (value == null) {
            return null;
        }
        throw new DataException("topic " + topic + ": " + AvroConverter.class.getName() + " reads only; it serves sink "
            + "connectors. Give a source connector a converter that writes, for example JsonConverter");
    }

    @Override
    public SchemaAndValue toConnectData(String topic, byte[] value) {
        return toConnectData(topic, null, value);
    }

    /** Null, a tombstone, stays null. Raises DataException or RetriableException as told above. */
    @Override
    public SchemaAndValue toConnectData(String topic, Headers headers, byte[] value) {
        if (value == null) {
            return SchemaAndValue.NULL;
        }
        if (value.length > maxBodyBytes) {
            throw new DataException("topic " + topic + ": the record has " + value.length + " bytes, more than "
                + ConverterConfig.MAX_BODY_BYTES + "=" + maxBodyBytes);
        }
        Header header = headers == null ? null : headers.lastHeader(isKey ? "__key_schema_id" : "__value_schema_id");
        int id = header == null ? idOf(value, value.length, topic) : idOf(header.value(), 0, topic);
        int start = header == null ? FRAME_BYTES : 0;
        RegisteredSchemas.Entry entry = schemas.get(id);
        try {
            AvroReader reader = new AvroReader(value, start);
            Object read = reader.read(entry.avro(), entry.connect());
            reader.expectEnd();
            return new SchemaAndValue(entry.connect(), read);
        } catch (DataException error) {
            throw new DataException(
                "topic " + topic + ": the body does not follow schema " + id + ": " + error.getMessage(), error);
        }
    }

    /** {@code length} 0: exactly the five bytes of a header; else the first five of a longer value. */
    private static int idOf(byte[] frame, int length, String topic) {
        boolean fits = frame != null && (length == 0 ? frame.length == FRAME_BYTES : length >= FRAME_BYTES);
        if (!fits || frame[0] != 0) {
            throw new DataException("topic " + topic + ": the record does not begin with byte 0 and a four-byte schema id");
        }
        return ByteBuffer.wrap(frame, 1, Integer.BYTES).getInt();
    }
}
