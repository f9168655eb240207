package io.aglstream.connect;

import java.sql.Connection;
import java.sql.Driver;
import java.sql.SQLException;
import java.util.Map;
import java.util.Properties;
import java.util.ServiceLoader;

/** The database of a sink's configuration, asked whether it is there. */
final class Database {
    private static final int TIMEOUT_SECONDS = 10;

    private final String url;
    private final Properties login = new Properties();

    Database(Map<String, String> properties) {
        url = properties.getOrDefault("connection.url", "");
        copy(properties, "connection.username", "user");
        copy(properties, "connection.password", "password");
    }

    private void copy(Map<String, String> properties, String from, String to) {
        String value = properties.get(from);
        if (value != null) {
            login.setProperty(to, value);
        }
    }

    /** Without parameters, which may hold a password. */
    String url() {
        return url.replaceFirst("[?;].*$", "");
    }

    /** SQLException with the reason when no connection can be made now. */
    void check() throws SQLException {
        for (Driver driver : ServiceLoader.load(Driver.class, Database.class.getClassLoader())) {
            if (driver.acceptsURL(url)) {
                try (Connection connection = driver.connect(url, login)) {
                    if (!connection.isValid(TIMEOUT_SECONDS)) {
                        throw new SQLException("the connection does not answer", "08006");
                    }
                    return;
                }
            }
        }
        throw new SQLException("no driver in the plugin's folder takes connection.url=" + url(), "01000");
    }
}
