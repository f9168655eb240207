package io.aglstream.connect;

import java.util.Map;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.Importance;
import org.apache.kafka.common.config.ConfigDef.Range;
import org.apache.kafka.common.config.ConfigDef.Type;

/** Settings of {@link AvroConverter}; in a connector's configuration each has the prefix {@code value.converter.}. */
final class ConverterConfig extends AbstractConfig {
    static final String URL = "schema.registry.url";
    static final String USER_INFO = "schema.registry.basic.auth.user.info";
    static final String TIMEOUT_MS = "schema.registry.timeout.ms";
    static final String CACHE_SIZE = "schemas.cache.size";
    static final String UNKNOWN_TTL_MS = "unknown.schema.ttl.ms";
    static final String MAX_BODY_BYTES = "max.body.bytes";

    static final ConfigDef DEFINITION = new ConfigDef()
        .define(URL, Type.LIST, ConfigDef.NO_DEFAULT_VALUE, new ConfigDef.NonEmptyString() {
            @Override
            public void ensureValid(String name, Object value) {
                if (value instanceof java.util.List<?> list && list.isEmpty()) {
                    super.ensureValid(name, "");
                }
            }
        }, Importance.HIGH, "Addresses of a Confluent-compatible registry, with commas; the next is asked when one fails.")
        .define(USER_INFO, Type.PASSWORD, "", Importance.MEDIUM, "USER:PASSWORD for the registry; empty: none.")
        .define(TIMEOUT_MS, Type.INT, 10_000, Range.atLeast(1), Importance.LOW, "How long one question may take.")
        .define(CACHE_SIZE, Type.INT, 1_000, Range.atLeast(1), Importance.LOW, "Schemas kept; the least used goes first.")
        .define(UNKNOWN_TTL_MS, Type.LONG, 10_000L, Range.atLeast(0), Importance.LOW,
            "How long an id counts as unknown before the registry is asked for it again.")
        .define(MAX_BODY_BYTES, Type.INT, 64 * 1024 * 1024, Range.atLeast(1), Importance.LOW, "Largest record read.");

    ConverterConfig(Map<String, ?> properties) {
        super(DEFINITION, properties, false);
    }
}
