package io.aglstream.connect;

import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.Importance;
import org.apache.kafka.common.config.ConfigDef.Type;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.transforms.Transformation;

/**
 * A transformation that makes a record's value one line of JSON, for sinks that write text.
 *
 * <p>Tombstones are left out: a line of text has no key to say what was removed.
 */
public final class JsonLine<R extends ConnectRecord<R>> implements Transformation<R> {
    static final String INT32_FIELDS = "int32.fields";
    static final String FLOAT32_FIELDS = "float32.fields";
    static final String EXCLUDE = "exclude";

    private static final ConfigDef DEFINITION = new ConfigDef()
        .define(INT32_FIELDS, Type.LIST, "", Importance.MEDIUM,
            "Bytes fields, at any depth, written as arrays of little-endian int32.")
        .define(FLOAT32_FIELDS, Type.LIST, "", Importance.MEDIUM,
            "Bytes fields, at any depth, written as arrays of little-endian float32.")
        .define(EXCLUDE, Type.LIST, "", Importance.MEDIUM, "Fields, at any depth, that are left out.");

    private JsonText json;

    @Override
    public void configure(Map<String, ?> properties) {
        AbstractConfig config = new AbstractConfig(DEFINITION, properties, false);
        json = new JsonText(
            Set.copyOf(config.getList(INT32_FIELDS)),
            Set.copyOf(config.getList(FLOAT32_FIELDS)),
            Set.copyOf(config.getList(EXCLUDE)));
    }

    @Override
    public ConfigDef config() {
        return DEFINITION;
    }

    @Override
    public R apply(R record) {
        if (record.value() == null) {
            return null;
        }
        return record.newRecord(
            record.topic(), record.kafkaPartition(), record.keySchema(), record.key(),
            Schema.STRING_SCHEMA, json.of(record.value()), record.timestamp());
    }

    @Override
    public void close() {}
}
