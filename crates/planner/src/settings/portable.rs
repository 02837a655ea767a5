//! A session's settings as another process goes on with them.
//!
//! What a process decides for all its sessions is not part of them: its release, its limits, its role.

use super::{DEFINITIONS, Definition, Kind, Settings, check, position, unrecognized};
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_database::Database;

type Pairs = Vec<(String, String)>;

/// A transaction has its own, and the next one begins with the defaults.
fn is_of_session(definition: &Definition) -> bool {
    let is_decided = matches!(definition.kind, Kind::ReadOnly | Kind::OfServer | Kind::OfFile);
    !definition.name.starts_with("transaction_") && (!is_decided || is_of_user(definition))
}

/// Follows from the user and the role.
fn is_of_user(definition: &Definition) -> bool {
    matches!(definition.kind, Kind::Fixed) || definition.name == "is_superuser"
}

impl Settings {
    /// Values that are others than at first, and of what `RESET` goes back to.
    pub fn to_portable(&self, at_first: &Settings) -> (Pairs, Pairs) {
        let of_session = || DEFINITIONS.iter().enumerate().filter(|(_, definition)| is_of_session(definition));
        let changed = |now: &dyn Fn(usize) -> String, before: &dyn Fn(usize) -> String| {
            let changed = of_session().filter(|(index, _)| now(*index) != before(*index));
            changed.map(|(index, definition)| (definition.name.to_owned(), now(index))).collect()
        };
        let values = changed(&|index| self.at(index).to_owned(), &|index| at_first.at(index).to_owned());
        let defaults = changed(&|index| self.defaults[index].clone(), &|index| at_first.defaults[index].clone());
        (values, defaults)
    }

    /// Settings that are no answer's: the client's own, and those without effect.
    pub fn custom(&self) -> Pairs {
        self.custom.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Sets what `to_portable` and `custom` of another process said, over what the user's sessions begin with here. 42704 or 22023 where this
    /// process does not know a setting, or a value of it.
    pub fn take_portable(
        &mut self,
        (values, defaults): (&Pairs, &Pairs),
        custom: &Pairs,
        database: &Database,
    ) -> Result<()> {
        let checked = |name: &str, value: &str| {
            let index = position(name).ok_or_else(|| unrecognized(name))?;
            let definition = &DEFINITIONS[index];
            let value = match is_of_user(definition) {
                true => value.to_owned(),
                false => check(definition, &[value.to_owned()], database)?,
            };
            Ok::<_, tidepool_base::Error>((index, value))
        };
        for (name, value) in defaults {
            let (index, value) = checked(name, value)?;
            Arc::make_mut(&mut self.defaults)[index] = value;
        }
        for (name, value) in values {
            let (index, value) = checked(name, value)?;
            self.put(index, value);
        }
        self.custom = Arc::new(custom.iter().cloned().collect());
        self.follow_defaults();
        Ok(())
    }

    /// What the client was told, if these are what it was told last.
    pub fn told(&self) -> Pairs {
        let reported = DEFINITIONS.iter().enumerate().filter(|(_, definition)| definition.report);
        reported.map(|(index, definition)| (definition.name.to_owned(), self.at(index).to_owned())).collect()
    }

    /// These, as the client was told of them.
    pub fn as_told(&self, told: &[(String, String)]) -> Settings {
        let mut settings = self.clone();
        for (name, value) in told {
            match position(name) {
                Some(index) if DEFINITIONS[index].name == "in_hot_standby" => settings.set_standby(value == "on"),
                Some(index) if DEFINITIONS[index].report => settings.put(index, value.clone()),
                // Of another release: there is nothing to tell of it here.
                _ => {}
            }
        }
        settings
    }
}
