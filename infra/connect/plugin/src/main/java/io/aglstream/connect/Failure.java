package io.aglstream.connect;

import java.sql.SQLException;
import java.sql.SQLRecoverableException;
import java.sql.SQLTransientException;
import java.util.ArrayDeque;
import java.util.Collections;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.Set;
import org.apache.kafka.connect.errors.DataException;

/**
 * Whose fault it is that rows were not written, by the SQLSTATE of the database (PostgreSQL manual, appendix A).
 *
 * <p>What is in doubt is nobody's: then the task stops, which loses nothing and is seen.
 */
enum Failure {
    /** The database is away, full or busy: the same rows can be written later. */
    OUTAGE,
    /** The database will never take this row. */
    RECORD,
    /** Something else, for example a table that does not fit: a person must look. */
    OTHER;

    static Failure of(Throwable error) {
        Failure found = OTHER;
        Set<Throwable> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        Deque<Throwable> open = new ArrayDeque<>(Set.of(error));
        while (!open.isEmpty()) {
            Throwable next = open.pop();
            if (!seen.add(next)) {
                continue;
            }
            Failure here = ofOne(next);
            // An outage explains whatever else went wrong beside it; a record is blamed only without one.
            if (here == OUTAGE) {
                return OUTAGE;
            }
            found = here == RECORD ? RECORD : found;
            if (next.getCause() != null) {
                open.push(next.getCause());
            }
            if (next instanceof SQLException sql && sql.getNextException() != null) {
                open.push(sql.getNextException());
            }
        }
        return found;
    }

    private static Failure ofOne(Throwable error) {
        if (error instanceof SQLTransientException || error instanceof SQLRecoverableException
            || error instanceof java.net.SocketException || error instanceof java.net.SocketTimeoutException) {
            return OUTAGE;
        }
        if (error instanceof DataException) {
            return RECORD;
        }
        if (!(error instanceof SQLException sql)) {
            return OTHER;
        }
        String state = sql.getSQLState();
        if (state == null || state.length() < 2) {
            // The connection pool's own errors have no state: it could not get a connection.
            return error.getClass() == SQLException.class ? OUTAGE : OTHER;
        }
        return switch (state.substring(0, 2)) {
            case "08", "40", "53", "57", "58" -> OUTAGE;
            case "22", "23" -> RECORD;
            default -> OTHER;
        };
    }
}
