package io.aglstream.connect;

import io.debezium.connector.jdbc.JdbcSinkConnector;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.sink.SinkConnector;

/**
 * Debezium's JDBC sink for events: nested records as flat columns, arrays of records as rows of their own.
 *
 * <p>Takes every setting of Debezium's connector and those of {@link RowsConfig}. Beyond that sink it waits for a
 * database that is away, for as long as that takes, and hands a row that the database refuses to the dead letter queue
 * instead of stopping at it.
 */
public final class RowsSinkConnector extends SinkConnector {
    private Map<String, String> properties = Map.of();

    @Override
    public void start(Map<String, String> properties) {
        this.properties = Map.copyOf(properties);
    }

    @Override
    public Class<? extends Task> taskClass() {
        return RowsSinkTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int maxTasks) {
        return Collections.nCopies(maxTasks, properties);
    }

    @Override
    public void stop() {}

    @Override
    public ConfigDef config() {
        ConfigDef definition = new ConfigDef(new JdbcSinkConnector().config());
        RowsConfig.DEFINITION.configKeys().values().forEach(definition::define);
        return definition;
    }

    @Override
    public String version() {
        return Version.OF_PLUGIN;
    }
}
