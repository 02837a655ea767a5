//! `SET`, `RESET` and `SHOW`, and what the protocol sets and reports.

use super::transaction::check_modes;
use super::{Outcome, ResultColumn, Session};
use crate::catalog::quote_identifier;
use crate::read_only;
use crate::settings::Settings;
use crate::statement::{SetValue, TransactionMode};
use arrow::array::{ArrayRef, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema};
use std::sync::Arc;
use tidepool_base::{Error, Result, RoleId, SqlState};
use tidepool_database::text::TextSettings;

/// Bytes of settings that are every session's to have.
const SETTINGS_UNCOUNTED: u64 = 8 << 10;

impl Session {
    /// The value of a setting as `SHOW` prints it.
    pub fn setting(&self, name: &str) -> Result<String> {
        self.settings.shown(name, self.planner.database()).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
        })
    }

    /// `SET` by the protocol (start-up parameters).
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let mut settings = self.settings.as_ref().clone();
        settings.set_default(name, value, self.planner.database())?;
        self.settings = Arc::new(settings);
        self.show_status();
        Ok(())
    }

    /// Settings that changed since last asked and that the protocol reports (ParameterStatus).
    pub fn take_changed_settings(&mut self) -> Vec<(String, String)> {
        self.notice_role();
        self.take_requested_settings();
        if Arc::ptr_eq(&self.settings, &self.settings_reported) {
            return Vec::new();
        }
        let changed = self.settings.reported_changes(&self.settings_reported);
        self.settings_reported = self.settings.clone();
        changed
    }

    pub fn shared_text_settings(&self) -> Arc<TextSettings> {
        self.settings.shared_text_settings().clone()
    }

    pub fn text_settings(&self) -> TextSettings {
        self.settings.text_settings()
    }

    pub(super) fn set_setting(&mut self, name: &str, value: &SetValue, local: bool) -> Result<()> {
        self.set_as(name, value, local, false)
    }

    fn set_as(&mut self, name: &str, value: &SetValue, local: bool, raw: bool) -> Result<()> {
        let lower = name.to_lowercase();
        if lower == "transaction_read_only"
            && let SetValue::Values(values) = value
        {
            let only = matches!(values.first().map(String::as_str), Some("on" | "true" | "1" | "yes"));
            return self.set_modes(&[TransactionMode::ReadOnly(only)], false);
        }
        if lower == "transaction_isolation"
            && let SetValue::Values(values) = value
            && let [level] = values.as_slice()
        {
            read_only::check_level(&self.settings, level)?;
        }
        if lower == "transaction_deferrable"
            && self.block.is_some()
            && let SetValue::Values(values) = value
        {
            let may = matches!(values.first().map(String::as_str), Some("on" | "true" | "1" | "yes"));
            return self.set_modes(&[TransactionMode::Deferrable(may)], false);
        }
        let database = self.planner.database().clone();
        // `SET` has names in it, each of which may need its quotes; `set_config` has the whole text.
        let names = lower == "search_path";
        let change = |settings: &mut Settings| match value {
            SetValue::Default => settings.reset(name),
            SetValue::Values(values) if names && !raw => {
                let quoted: Vec<String> = values.iter().map(|value| quote_identifier(value)).collect();
                settings.set(name, &quoted, &database)
            }
            SetValue::Values(values) => settings.set(name, values, &database),
        };
        if local && self.block.is_none() {
            self.notice(
                "WARNING",
                SqlState::NO_ACTIVE_SQL_TRANSACTION,
                "SET LOCAL can only be used in transaction blocks",
            );
            // It has no effect, but may be wrong.
            return change(&mut self.settings.as_ref().clone());
        }
        self.change_settings(local, change)
    }

    /// Sets what `SET` has a form of its own for.
    pub(super) fn set_own_setting(&mut self, name: &str, value: &str, local: bool) -> Result<()> {
        if local && self.block.is_none() {
            let message = "SET LOCAL can only be used in transaction blocks";
            self.notice("WARNING", SqlState::NO_ACTIVE_SQL_TRANSACTION, message);
            return Ok(());
        }
        let superuser = |settings: &Settings| {
            let state = self.planner.database().state();
            let name =
                settings.get("role").filter(|role| role != "none").or_else(|| settings.get("session_authorization"));
            let role = name.and_then(|name| state.catalog.role(&name).map(|role| role.superuser));
            if role.unwrap_or(self.shared.role == RoleId::OWNER) { "on" } else { "off" }
        };
        let mut settings = self.settings.as_ref().clone();
        settings.set_own(name, value);
        settings.set_own("is_superuser", superuser(&settings));
        let is_superuser = settings.get("is_superuser").unwrap_or_default();
        self.change_settings(local, |settings| {
            settings.set_own(name, value);
            settings.set_own("is_superuser", &is_superuser);
            Ok(())
        })
    }

    /// `SET SESSION CHARACTERISTICS AS TRANSACTION`.
    pub(super) fn set_session_transaction(&mut self, modes: &[TransactionMode]) -> Result<Outcome> {
        check_modes(modes)?;
        for mode in modes {
            let (name, value) = match mode {
                TransactionMode::Isolation(level) => ("default_transaction_isolation", *level),
                TransactionMode::ReadOnly(only) => ("default_transaction_read_only", if *only { "on" } else { "off" }),
                TransactionMode::Deferrable(may) => ("default_transaction_deferrable", if *may { "on" } else { "off" }),
            };
            self.set_setting(name, &SetValue::Values(vec![value.to_owned()]), false)?;
        }
        Ok(Outcome::command("SET"))
    }

    pub(super) fn reset(&mut self, name: Option<&str>) -> Result<Outcome> {
        match name {
            Some(name) => self.set_setting(name, &SetValue::Default, false)?,
            None => self.reset_all()?,
        }
        Ok(Outcome::command("RESET"))
    }

    pub(super) fn reset_all(&mut self) -> Result<()> {
        self.change_settings(false, |settings| {
            settings.reset_all();
            Ok(())
        })
    }

    /// Carries out what `set_config` asked for. The function has checked the values, so that nothing fails here.
    pub(super) fn take_requested_settings(&mut self) {
        let requested = std::mem::take(&mut *self.shared.requested_settings.lock());
        for (name, value, local) in requested {
            if let Err(error) = self.set_as(&name, &SetValue::Values(vec![value]), local, true) {
                tracing::warn!(%error, setting = name, "set_config was accepted and then failed");
            }
        }
    }

    /// Charges the session for settings that are much. 53200 where there is no room for them.
    pub(super) fn hold_settings(&mut self, settings: &Settings) -> Result<()> {
        let bytes = settings.bytes();
        match &mut self.settings_held {
            Some(held) => held.resize(bytes)?,
            None if bytes > SETTINGS_UNCOUNTED => self.settings_held = self.hold(bytes)?,
            None => {}
        }
        Ok(())
    }

    fn change_settings(&mut self, local: bool, change: impl Fn(&mut Settings) -> Result<()>) -> Result<()> {
        let mut settings = self.settings.as_ref().clone();
        change(&mut settings)?;
        match &mut self.block {
            Some(block) if !local => {
                let session = Arc::make_mut(&mut block.settings_session);
                change(session)?;
                session.follow_defaults();
            }
            Some(_) => {}
            None => settings.follow_defaults(),
        }
        self.hold_settings(&settings)?;
        self.settings = Arc::new(settings);
        self.show_status();
        Ok(())
    }

    pub(super) fn show(&self, name: Option<&str>) -> Result<Outcome> {
        let rows = |columns: Vec<(&str, Vec<String>)>| {
            let fields: Vec<Field> =
                columns.iter().map(|(name, _)| Field::new(*name, DataType::Utf8View, true)).collect();
            let described = columns.iter().map(|(name, _)| ResultColumn::text(name)).collect();
            let arrays = columns
                .into_iter()
                .map(|(_, values)| Arc::new(StringViewArray::from_iter_values(values)) as ArrayRef)
                .collect();
            let batch =
                RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).map_err(crate::errors::from_arrow)?;
            Ok(Outcome::Rows { columns: described, batches: Box::pin(futures::stream::iter([Ok(batch)])), tag: "SHOW" })
        };
        match name {
            Some(name) => rows(vec![(&spelled(name), vec![self.setting(name)?])]),
            None => {
                let list = self.settings.list(self.planner.database());
                rows(vec![
                    ("name", list.iter().map(|row| row.name.to_owned()).collect()),
                    ("setting", list.iter().map(|row| row.value.clone()).collect()),
                    ("description", list.iter().map(|row| row.description.to_owned()).collect()),
                ])
            }
        }
    }
}

/// `SHOW`'s column is called after the setting, as it spells itself.
pub(super) fn spelled(name: &str) -> String {
    match name.to_lowercase().as_str() {
        "timezone" => "TimeZone".to_owned(),
        "datestyle" => "DateStyle".to_owned(),
        "intervalstyle" => "IntervalStyle".to_owned(),
        name => name.to_owned(),
    }
}
