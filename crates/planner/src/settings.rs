//! Settings of a session (`SET`, `SHOW`, `tidepool.toml`'s defaults).

/// One immutable state of a session's settings; `SET` makes the next one.
#[derive(Clone, Debug, Default)]
pub struct Settings {}

/// A row of `pg_settings` and `SHOW ALL`.
#[derive(Clone, Debug)]
pub struct SettingRow {
    pub name: &'static str,
    /// As `SHOW` prints it.
    pub value: String,
    pub description: &'static str,
}

impl Settings {
    /// As `SHOW` prints it; `None` for a name that is no setting.
    pub fn get(&self, _name: &str) -> Option<String> {
        unimplemented!()
    }
    pub fn list(&self) -> Vec<SettingRow> {
        unimplemented!()
    }
}
