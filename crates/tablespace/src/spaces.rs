use crate::{LedgerRow, Tablespace, TablespaceConfig};
use parking_lot::RwLock;
use std::sync::Arc;
use tidepool_base::{ByteSize, Error, Result, SqlState, TablespaceId, nearest};

const NEAR: TablespaceId = TablespaceId(0);
const FAR: TablespaceId = TablespaceId(1);

/// Opens a tablespace.
pub type Opener<'o> = &'o dyn Fn(TablespaceId, TablespaceConfig) -> Result<Arc<Tablespace>>;

/// The tablespaces of a process by name. `near` and `far` always exist.
///
/// Names are compared as they are: whoever takes them from SQL has folded their case.
#[derive(Debug)]
pub struct Tablespaces {
    near: Arc<Tablespace>,
    far: Arc<Tablespace>,
    created: RwLock<Created>,
}

#[derive(Debug)]
struct Created {
    spaces: Vec<Arc<Tablespace>>,
    /// Never used twice: counters and tags of a dropped tablespace may outlive it.
    next_id: u16,
}

impl Tablespaces {
    /// The names in the configurations do not matter: these two are `near` and `far`.
    pub fn open(near: TablespaceConfig, far: TablespaceConfig) -> Result<Tablespaces> {
        Tablespaces::open_by(near, far, &Tablespace::open)
    }

    /// As `open`; each is opened by `by`.
    pub fn open_by(near: TablespaceConfig, far: TablespaceConfig, by: Opener<'_>) -> Result<Tablespaces> {
        let open = |id, name: &str, config: TablespaceConfig| by(id, TablespaceConfig { name: name.into(), ..config });
        Ok(Tablespaces {
            near: open(NEAR, "near", near)?,
            far: open(FAR, "far", far)?,
            created: RwLock::new(Created { spaces: Vec::new(), next_id: FAR.0 + 1 }),
        })
    }

    pub fn near(&self) -> Arc<Tablespace> {
        self.near.clone()
    }

    pub fn far(&self) -> Arc<Tablespace> {
        self.far.clone()
    }

    /// 42704 when there is none.
    pub fn get(&self, name: &str) -> Result<Arc<Tablespace>> {
        let space = match name {
            "near" => Some(self.near()),
            "far" => Some(self.far()),
            _ => self.created.read().spaces.iter().find(|space| space.name() == name).cloned(),
        };
        space.ok_or_else(|| missing(name, &self.list()))
    }

    /// `near`, `far`, then the others in the order of their creation.
    pub fn list(&self) -> Vec<Arc<Tablespace>> {
        let created = self.created.read();
        [&self.near, &self.far].into_iter().chain(&created.spaces).cloned().collect()
    }

    /// 42710 when the name is taken.
    pub fn create(&self, config: TablespaceConfig) -> Result<Arc<Tablespace>> {
        self.create_by(config, &Tablespace::open)
    }

    /// As `create`; it is opened by `open`.
    pub fn create_by(&self, config: TablespaceConfig, open: Opener<'_>) -> Result<Arc<Tablespace>> {
        // Held while the device is opened: rarely, and two of one name must not both be made.
        let mut created = self.created.write();
        let taken = matches!(config.name.as_str(), "near" | "far")
            || created.spaces.iter().any(|space| space.name() == config.name);
        if taken {
            return Err(Error::new(
                SqlState::DUPLICATE_OBJECT,
                format!("tablespace \"{}\" already exists", config.name),
            ));
        }
        if config.name.is_empty() {
            return Err(Error::new(SqlState::INVALID_NAME, "a tablespace needs a name"));
        }
        let id = created.next_id;
        let next_id = id.checked_add(1).ok_or_else(|| {
            Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "too many tablespaces were created since start")
        })?;
        let space = open(TablespaceId(id), config)?;
        created.next_id = next_id;
        created.spaces.push(space.clone());
        Ok(space)
    }

    /// 55006 while anything lives in it; 42939 for `near` and `far`.
    pub fn drop(&self, name: &str) -> Result<()> {
        if matches!(name, "near" | "far") {
            return Err(Error::new(SqlState::RESERVED_NAME, format!("tablespace \"{name}\" cannot be dropped"))
                .with_detail("It always exists."));
        }
        let mut created = self.created.write();
        let found = created.spaces.iter().position(|space| space.name() == name);
        let index = found.ok_or_else(|| missing(name, &created.spaces))?;
        created.spaces[index].close().map_err(|held| {
            let held: Vec<String> =
                held.iter().map(|row| format!("{} of {}", ByteSize(row.bytes), row.purpose.name())).collect();
            Error::new(SqlState::OBJECT_IN_USE, format!("tablespace \"{name}\" is not empty"))
                .with_detail(format!("It holds {}.", held.join(", ")))
        })?;
        let space = created.spaces.remove(index);
        std::mem::drop(created);
        // Whoever holds it still (a statement that never used it) closes it at its end; the memory goes now.
        space.trim(0)?;
        Ok(())
    }

    pub fn ledger(&self) -> Vec<LedgerRow> {
        self.list().iter().flat_map(|space| space.ledger()).collect()
    }
}

fn missing(name: &str, spaces: &[Arc<Tablespace>]) -> Error {
    let error = Error::new(SqlState::UNDEFINED_OBJECT, format!("tablespace \"{name}\" does not exist"));
    match nearest(name, spaces.iter().map(|space| space.name())) {
        Some(near) => error.with_hint(format!("Perhaps you meant \"{near}\".")),
        None => error,
    }
}
