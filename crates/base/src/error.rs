//! One error type: a PostgreSQL code, a short lower-case message, and detail and hint as full sentences.

use std::fmt;

/// A five-character PostgreSQL error code (SQLSTATE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqlState(&'static str);

macro_rules! sqlstates {
    ($($name:ident = $code:literal),* $(,)?) => {
        impl SqlState { $(pub const $name: SqlState = SqlState($code);)* }

        impl SqlState {
            /// Recognises a code that Tidepool itself can raise.
            pub fn from_code(code: &str) -> Option<SqlState> {
                match code { $($code => Some(SqlState::$name),)* _ => None }
            }
        }
    };
}

sqlstates! {
    SUCCESSFUL_COMPLETION = "00000",
    WARNING = "01000",
    PRIVILEGE_NOT_REVOKED = "01006",
    PRIVILEGE_NOT_GRANTED = "01007",
    CONNECTION_FAILURE = "08006",
    PROTOCOL_VIOLATION = "08P01",
    FEATURE_NOT_SUPPORTED = "0A000",
    CARDINALITY_VIOLATION = "21000",
    DATA_EXCEPTION = "22000",
    STRING_DATA_RIGHT_TRUNCATION = "22001",
    NUMERIC_VALUE_OUT_OF_RANGE = "22003",
    INVALID_DATETIME_FORMAT = "22007",
    DATETIME_FIELD_OVERFLOW = "22008",
    DIVISION_BY_ZERO = "22012",
    INVALID_PRECEDING_OR_FOLLOWING_SIZE = "22013",
    INVALID_ARGUMENT_FOR_NTILE = "22014",
    INVALID_ARGUMENT_FOR_NTH_VALUE = "22016",
    INVALID_ARGUMENT_FOR_LOGARITHM = "2201E",
    INVALID_ARGUMENT_FOR_POWER_FUNCTION = "2201F",
    INVALID_ROW_COUNT_IN_LIMIT = "2201W",
    INVALID_ROW_COUNT_IN_OFFSET = "2201X",
    INVALID_TABLESAMPLE_REPEAT = "2202G",
    INVALID_TABLESAMPLE_ARGUMENT = "2202H",
    SEQUENCE_GENERATOR_LIMIT_EXCEEDED = "2200H",
    INVALID_ESCAPE_CHARACTER = "22019",
    INVALID_REGULAR_EXPRESSION = "2201B",
    CHARACTER_NOT_IN_REPERTOIRE = "22021",
    INVALID_ESCAPE_SEQUENCE = "22025",
    INVALID_PARAMETER_VALUE = "22023",
    INVALID_TEXT_REPRESENTATION = "22P02",
    INVALID_BINARY_REPRESENTATION = "22P03",
    BAD_COPY_FILE_FORMAT = "22P04",
    UNTRANSLATABLE_CHARACTER = "22P05",
    NOT_NULL_VIOLATION = "23502",
    FOREIGN_KEY_VIOLATION = "23503",
    UNIQUE_VIOLATION = "23505",
    CHECK_VIOLATION = "23514",
    INVALID_CURSOR_STATE = "24000",
    INVALID_TRANSACTION_STATE = "25000",
    ACTIVE_SQL_TRANSACTION = "25001",
    READ_ONLY_SQL_TRANSACTION = "25006",
    NO_ACTIVE_SQL_TRANSACTION = "25P01",
    IN_FAILED_SQL_TRANSACTION = "25P02",
    IDLE_IN_TRANSACTION_SESSION_TIMEOUT = "25P03",
    INVALID_SQL_STATEMENT_NAME = "26000",
    INVALID_AUTHORIZATION = "28000",
    INVALID_PASSWORD = "28P01",
    DEPENDENT_OBJECTS_STILL_EXIST = "2BP01",
    INVALID_CURSOR_NAME = "34000",
    INVALID_SAVEPOINT_SPECIFICATION = "3B001",
    INVALID_CATALOG_NAME = "3D000",
    INVALID_SCHEMA_NAME = "3F000",
    SERIALIZATION_FAILURE = "40001",
    DEADLOCK_DETECTED = "40P01",
    INVALID_GRANT_OPERATION = "0LP01",
    INSUFFICIENT_PRIVILEGE = "42501",
    SYNTAX_ERROR = "42601",
    INVALID_NAME = "42602",
    NAME_TOO_LONG = "42622",
    DUPLICATE_COLUMN = "42701",
    AMBIGUOUS_COLUMN = "42702",
    UNDEFINED_COLUMN = "42703",
    UNDEFINED_OBJECT = "42704",
    DUPLICATE_OBJECT = "42710",
    DUPLICATE_ALIAS = "42712",
    DUPLICATE_FUNCTION = "42723",
    AMBIGUOUS_FUNCTION = "42725",
    GENERATED_ALWAYS = "428C9",
    GROUPING_ERROR = "42803",
    DATATYPE_MISMATCH = "42804",
    WRONG_OBJECT_TYPE = "42809",
    INVALID_FOREIGN_KEY = "42830",
    CANNOT_COERCE = "42846",
    UNDEFINED_FUNCTION = "42883",
    RESERVED_NAME = "42939",
    UNDEFINED_TABLE = "42P01",
    UNDEFINED_PARAMETER = "42P02",
    DUPLICATE_CURSOR = "42P03",
    DUPLICATE_DATABASE = "42P04",
    DUPLICATE_PREPARED_STATEMENT = "42P05",
    DUPLICATE_SCHEMA = "42P06",
    DUPLICATE_TABLE = "42P07",
    INVALID_COLUMN_REFERENCE = "42P10",
    INVALID_SCHEMA_DEFINITION = "42P15",
    INVALID_TABLE_DEFINITION = "42P16",
    INVALID_OBJECT_DEFINITION = "42P17",
    INDETERMINATE_DATATYPE = "42P18",
    INVALID_RECURSION = "42P19",
    WINDOWING_ERROR = "42P20",
    INSUFFICIENT_RESOURCES = "53000",
    DISK_FULL = "53100",
    OUT_OF_MEMORY = "53200",
    TOO_MANY_CONNECTIONS = "53300",
    PROGRAM_LIMIT_EXCEEDED = "54000",
    STATEMENT_TOO_COMPLEX = "54001",
    TOO_MANY_COLUMNS = "54011",
    OBJECT_NOT_IN_PREREQUISITE_STATE = "55000",
    OBJECT_IN_USE = "55006",
    CANT_CHANGE_RUNTIME_PARAM = "55P02",
    LOCK_NOT_AVAILABLE = "55P03",
    QUERY_CANCELED = "57014",
    ADMIN_SHUTDOWN = "57P01",
    CRASH_SHUTDOWN = "57P02",
    IDLE_SESSION_TIMEOUT = "57P05",
    CANNOT_CONNECT_NOW = "57P03",
    IO_ERROR = "58030",
    UNDEFINED_FILE = "58P01",
    DUPLICATE_FILE = "58P02",
    CONFIG_FILE_ERROR = "F0000",
    INTERNAL_ERROR = "XX000",
    DATA_CORRUPTED = "XX001",
}

impl SqlState {
    pub fn code(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fields {
    code: SqlState,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    /// Where in the input the error was found: PostgreSQL's CONTEXT line, such as `COPY t, line 3, column a`.
    context: Option<String>,
    /// One-based character offset into the statement's text.
    position: Option<u32>,
    subject: Option<Subject>,
}

/// What of a table an error is about, for clients that ask for more than a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub schema: String,
    pub table: String,
    pub part: Part,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The table itself.
    Whole,
    Column(String),
    Constraint(String),
}

/// An operating error: what a client is told. One word wide, so that `Result` stays small.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Fields>);

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(code: SqlState, message: impl Into<String>) -> Error {
        Error(Box::new(Fields {
            code,
            message: message.into(),
            detail: None,
            hint: None,
            context: None,
            position: None,
            subject: None,
        }))
    }

    /// A broken invariant that could be reported instead of stopping the process.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(SqlState::INTERNAL_ERROR, message)
    }

    pub fn unsupported(message: impl Into<String>) -> Error {
        Error::new(SqlState::FEATURE_NOT_SUPPORTED, message)
    }

    pub fn corrupted(message: impl Into<String>) -> Error {
        Error::new(SqlState::DATA_CORRUPTED, message)
    }

    /// An operating-system error met while doing `action` (such as `open file "x"`), with the code PostgreSQL gives it.
    pub fn io(action: impl fmt::Display, error: &std::io::Error) -> Error {
        use std::io::ErrorKind;
        let code = match error.kind() {
            ErrorKind::NotFound => SqlState::UNDEFINED_FILE,
            ErrorKind::PermissionDenied => SqlState::INSUFFICIENT_PRIVILEGE,
            ErrorKind::AlreadyExists => SqlState::DUPLICATE_FILE,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => SqlState::DISK_FULL,
            ErrorKind::OutOfMemory => SqlState::OUT_OF_MEMORY,
            _ => SqlState::IO_ERROR,
        };
        Error::new(code, format!("could not {action}: {error}"))
    }

    pub fn with_detail(mut self, detail: impl Into<String>) -> Error {
        self.0.detail = Some(detail.into());
        self
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    pub fn with_context(mut self, context: impl Into<String>) -> Error {
        self.0.context = Some(context.into());
        self
    }

    pub fn with_position(mut self, position: u32) -> Error {
        self.0.position = Some(position);
        self
    }

    pub fn with_subject(mut self, subject: Subject) -> Error {
        self.0.subject = Some(subject);
        self
    }

    pub fn code(&self) -> SqlState {
        self.0.code
    }

    /// A tablespace, or the pool or the file system that it takes its memory from, has no room.
    pub fn is_of_room(&self) -> bool {
        matches!(self.0.code, SqlState::OUT_OF_MEMORY | SqlState::DISK_FULL)
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    pub fn context(&self) -> Option<&str> {
        self.0.context.as_deref()
    }

    pub fn position(&self) -> Option<u32> {
        self.0.position
    }

    pub fn subject(&self) -> Option<&Subject> {
        self.0.subject.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(detail) = &self.0.detail {
            write!(f, " DETAIL: {detail}")?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, " HINT: {hint}")?;
        }
        if let Some(context) = &self.0.context {
            write!(f, " CONTEXT: {context}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.0.code)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_word_and_shows_all_its_parts() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        let error = Error::new(SqlState::BAD_COPY_FILE_FORMAT, "missing data for column \"b\"")
            .with_detail("One column was read.")
            .with_context("COPY t, line 2");
        assert_eq!(
            error.to_string(),
            "missing data for column \"b\" DETAIL: One column was read. CONTEXT: COPY t, line 2"
        );
        assert_eq!(SqlState::from_code("22P04"), Some(error.code()));
    }
}
