//! `CREATE EXTENSION` and `DROP EXTENSION`: what the extensions that most applications ask for are used for is built in.

use super::Command;
use super::cursor::Cursor;
use super::parts::name_or_text;
use tidepool_base::{Error, Result, SqlState};

/// Extensions, and what of them is built in.
const BUILT_IN: [(&str, &str); 3] = [
    ("pgcrypto", "Of it, gen_random_uuid() is there."),
    ("plpgsql", "Functions and DO blocks cannot be written in it."),
    ("uuid-ossp", "Of it, uuid_generate_v4() and uuid_nil() are there."),
];

fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, what)| *what)
}

/// Past `CREATE EXTENSION`.
pub fn create(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.keywords(&["if", "not", "exists"]);
    let name = name_or_text(cursor)?;
    cursor.skip_rest();
    let notice = match built_in(&name) {
        Some(what) => Error::new(SqlState::DUPLICATE_OBJECT, format!("extension \"{name}\" is built in, skipping"))
            .with_detail(what),
        None => {
            let error = Error::unsupported(format!("extension \"{name}\" is not available"));
            let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            return Ok(Command::Unsupported(error.with_hint(format!("Built in are parts of: {}.", names.join(", ")))));
        }
    };
    Ok(Command::DoNothing { tag: "CREATE EXTENSION", notice: Some(notice) })
}

/// Past `DROP EXTENSION`.
pub fn drop(cursor: &mut Cursor<'_>) -> Result<Command> {
    let if_exists = cursor.keywords(&["if", "exists"]);
    let name = name_or_text(cursor)?;
    cursor.skip_rest();
    if built_in(&name).is_some() {
        let message = format!("cannot drop extension \"{name}\" because it is built in");
        return Ok(Command::Unsupported(Error::new(SqlState::DEPENDENT_OBJECTS_STILL_EXIST, message)));
    }
    let missing = format!("extension \"{name}\" does not exist");
    if !if_exists {
        return Ok(Command::Unsupported(Error::new(SqlState::UNDEFINED_OBJECT, missing)));
    }
    let notice = Error::new(SqlState::SUCCESSFUL_COMPLETION, format!("{missing}, skipping"));
    Ok(Command::DoNothing { tag: "DROP EXTENSION", notice: Some(notice) })
}

/// Past `COMMENT ON EXTENSION`, which dumps have. Built-in ones have none.
pub fn comment(cursor: &mut Cursor<'_>) -> Result<Command> {
    let name = name_or_text(cursor)?;
    cursor.skip_rest();
    match built_in(&name) {
        Some(_) => Ok(Command::DoNothing { tag: "COMMENT", notice: None }),
        None => {
            let message = format!("extension \"{name}\" does not exist");
            Ok(Command::Unsupported(Error::new(SqlState::UNDEFINED_OBJECT, message)))
        }
    }
}
