package io.aglstream.connect;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.Importance;
import org.apache.kafka.common.config.ConfigDef.Range;
import org.apache.kafka.common.config.ConfigDef.Type;

/** Settings of {@link RowsSinkConnector} beyond those of the JDBC sink below it. */
final class RowsConfig extends AbstractConfig {
    static final String EXPLODE = "rows.explode";
    static final String PARENT = "rows.parent";
    static final String EXCLUDE = "rows.exclude";
    static final String COUNTS = "rows.counts";
    static final String POSITION = "rows.position";
    static final String RETRY_DELAY_MS = "rows.retry.delay.ms";
    private static final String KEYS = "primary.key.fields";
    private static final String TIMESTAMP_SUFFIX = "_at_us";

    static final ConfigDef DEFINITION = new ConfigDef()
        .define(EXPLODE, Type.STRING, "", Importance.HIGH,
            "An array of records: each item becomes a row. Empty: each record becomes a row.")
        .define(PARENT, Type.LIST, "", Importance.HIGH,
            "With rows.explode: columns of the record that each row gets as well, as COLUMN or COLUMN:NAME.")
        .define(EXCLUDE, Type.LIST, "", Importance.MEDIUM, "Fields of a row that get no column.")
        .define(COUNTS, Type.LIST, "", Importance.MEDIUM,
            "Bytes fields of four-byte numbers that become the count of them, as FIELD:COLUMN.")
        .define(POSITION, Type.BOOLEAN, false, Importance.LOW,
            "Whether rows have the columns log_partition and log_offset.")
        .define(RETRY_DELAY_MS, Type.LONG, 1_000L, Range.atLeast(1), Importance.LOW,
            "Wait before a database that does not answer is tried again.");

    private final Set<String> keys;

    RowsConfig(Map<String, String> properties) {
        super(DEFINITION, properties, false);
        String named = properties.getOrDefault(KEYS, "");
        keys = Set.copyOf(List.of(named.isBlank() ? new String[0] : named.trim().split("\\s*,\\s*")));
    }

    /** Columns of the primary key: the only ones that may not be null. */
    Set<String> keys() {
        return keys;
    }

    String explode() {
        return getString(EXPLODE);
    }

    Set<String> excluded() {
        return Set.copyOf(getList(EXCLUDE));
    }

    /** Column of the record to its name in the row, in order. */
    Map<String, String> parent() {
        return pairs(PARENT);
    }

    /** Field to column. */
    Map<String, String> counts() {
        return pairs(COUNTS);
    }

    private Map<String, String> pairs(String setting) {
        Map<String, String> pairs = new LinkedHashMap<>();
        for (String pair : getList(setting)) {
            int colon = pair.indexOf(':');
            pairs.put(colon < 0 ? pair : pair.substring(0, colon), colon < 0 ? pair : pair.substring(colon + 1));
        }
        return pairs;
    }

    /** Column of a field of microseconds since the epoch; null for other fields. */
    static String timestampColumn(String field) {
        return field.endsWith(TIMESTAMP_SUFFIX) ? field.substring(0, field.length() - "_us".length()) : null;
    }
}
