package io.aglstream.connect;

import io.debezium.connector.jdbc.JdbcSinkConnectorTask;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.errors.RetriableException;
import org.apache.kafka.connect.sink.ErrantRecordReporter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Makes rows of records and has Debezium's task write them.
 *
 * <p>{@code put} returns when all rows are committed in the database, so the offsets that Connect then commits are
 * those of written records. Debezium's task refuses everything after its first failure; here it is replaced by a new
 * one, and what follows depends on whose {@link Failure} it was.
 */
public final class RowsSinkTask extends SinkTask {
    private static final Logger LOG = LoggerFactory.getLogger(RowsSinkTask.class);

    private Map<String, String> properties = Map.of();
    private RowsConfig config;
    private Rows rows;
    private Database database;
    private JdbcSinkConnectorTask sink;

    @Override
    public String version() {
        return Version.OF_PLUGIN;
    }

    @Override
    public void start(Map<String, String> properties) {
        config = new RowsConfig(properties);
        rows = new Rows(config);
        database = new Database(properties);
        this.properties = new HashMap<>(properties);
        this.properties.keySet().removeIf(RowsConfig.DEFINITION.names()::contains);
        try {
            sink = newSink();
        } catch (RetriableException outage) {
            LOG.warn("{}; starting all the same", outage.getMessage());
        }
    }

    @Override
    public void put(Collection<SinkRecord> records) {
        List<SinkRecord> all = new ArrayList<>();
        List<SinkRecord> good = new ArrayList<>();
        for (SinkRecord record : records) {
            try {
                all.addAll(rows.of(record));
                good.add(record);
            } catch (DataException error) {
                report(record, error);
            }
        }
        Throwable failure = write(all);
        if (failure != null) {
            raiseUnlessOfARecord(failure);
            LOG.warn("the database refuses a row of {} records, which are now written one by one", good.size(), failure);
            good.forEach(this::writeAlone);
        }
    }

    private void writeAlone(SinkRecord record) {
        Throwable failure = write(rows.of(record));
        if (failure != null) {
            raiseUnlessOfARecord(failure);
            report(record, new DataException("the database refuses it: " + rootMessage(failure), failure));
        }
    }

    /** Why the rows were not written; null when they were. */
    private Throwable write(List<SinkRecord> all) {
        if (all.isEmpty()) {
            return null;
        }
        if (sink == null) {
            sink = newSink();
        }
        sink.put(all);
        Throwable failure = sink.getLastProcessingException();
        if (failure != null) {
            closeSink();
        }
        return failure;
    }

    private void raiseUnlessOfARecord(Throwable failure) {
        switch (Failure.of(failure)) {
            case OUTAGE -> throw outage(failure);
            case OTHER -> throw new ConnectException("rows cannot be written: " + rootMessage(failure), failure);
            case RECORD -> { }
        }
    }

    /** Connect hands the same records in again after the delay. */
    private RetriableException outage(Throwable why) {
        context.timeout(config.getLong(RowsConfig.RETRY_DELAY_MS));
        return new RetriableException("the database at " + database.url() + " is away: " + rootMessage(why), why);
    }

    private void report(SinkRecord record, DataException error) {
        ErrantRecordReporter reporter = context.errantRecordReporter();
        if (reporter == null) {
            throw error;
        }
        LOG.warn("record {}-{} at offset {} is refused: {}", record.originalTopic(), record.originalKafkaPartition(),
            record.originalKafkaOffset(), error.getMessage());
        reporter.report(record, error);
    }

    private JdbcSinkConnectorTask newSink() {
        try {
            // Debezium's own start tries for half a minute, and does not tell a wrong password from an outage.
            database.check();
        } catch (java.sql.SQLException error) {
            if (Failure.of(error) == Failure.OUTAGE) {
                throw outage(error);
            }
            throw new ConnectException("the database at " + database.url() + " refuses: " + error.getMessage(), error);
        }
        JdbcSinkConnectorTask fresh = new JdbcSinkConnectorTask();
        fresh.initialize(context);
        try {
            fresh.start(properties);
        } catch (RuntimeException error) {
            fresh.stop();
            if (Failure.of(error) == Failure.OUTAGE) {
                throw outage(error);
            }
            throw error;
        }
        fresh.open(context.assignment());
        return fresh;
    }

    private void closeSink() {
        if (sink != null) {
            sink.stop();
            sink = null;
        }
    }

    private static String rootMessage(Throwable error) {
        Throwable root = error;
        while (root.getCause() != null && root.getCause() != root) {
            root = root.getCause();
        }
        return String.valueOf(root.getMessage()).lines().findFirst().orElse(root.getClass().getSimpleName());
    }

    @Override
    public void open(Collection<TopicPartition> partitions) {
        if (sink != null) {
            sink.open(partitions);
        }
    }

    @Override
    public void close(Collection<TopicPartition> partitions) {
        if (sink != null) {
            sink.close(partitions);
        }
    }

    @Override
    public void stop() {
        closeSink();
    }
}
