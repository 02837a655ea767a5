//! The process as a host of a pool: what tablespaces at `pool:` lease their memory from.
//!
//! A database has one host that reigns over it, in the `TERM` word of the pool's directory. A process that opens a database
//! begins a term, unless a host that may be alive reigns: then it is refused. What an earlier host of the database had
//! published, or was filling, is freed then: there is no manifest in the pool yet that names it, and the rows come from the
//! data folder.
//!
//! Where the database itself lives in the pool, it is `roles` that begins terms, and looks at other hosts.
//!
//! A thread looks whether other hosts have died, whose memory is then free, and whether others took this one for dead.
//! Then the process ends at once: what it has mapped may be another's.

use crate::background::Background;
use crate::config::{Config, PoolRole, PoolSettings};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState, TablespaceId};
use tidepool_device::{Location, stop};
use tidepool_pool::layout::HostNumber;
use tidepool_pool::liveness::{Watcher, bury_life_left, life_left};
use tidepool_pool::member::{BEAT, JoinOptions, Member};
use tidepool_pool::pool::{HostView, Pool};
use tidepool_pool::words::{Host, HostState, Number, Reign, Role, TermState};
use tidepool_tablespace::{LeaseOptions, Tablespace, TablespaceConfig};

/// Tells the program that takes the place of this one, in the same process, which life in the pool is over by that.
pub const LIFE_LEFT_VARIABLE: &str = "TIDEPOOL_POOL_LIFE_LEFT";

/// Bytes of a socket's path.
const SOCKET_PATH_MAX: usize = 107;

/// Between two looks at the pool, each of some microseconds and one system call a host: what another host had is free so soon
/// after its end.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);

/// How often a host that reads tries to join: it can write to one slot's page, and another host may take that.
const JOIN_TRIES: usize = 16;

/// How often a host looks how much of the pool is free, in looks: that reads a word of each extent.
const LOOKS_BETWEEN: u32 = 4;

/// How often who tends to a database is called, at most, while the pool is short of room.
const CALL_INTERVAL: Duration = Duration::from_secs(1);

/// Extents that a host which reads keeps for its next use, where there is no want of them.
const SPARE_EXTENTS: usize = 16;

/// But for so much of each tablespace, which statements take again at once.
const KEPT_BYTES: u64 = 16 << 20;

#[derive(Debug, Default)]
struct Stop {
    is_asked: Mutex<bool>,
    asked: Condvar,
}

/// The tablespaces of a host, and who tends to what is in them.
#[derive(Debug, Default)]
struct Spaces {
    list: Mutex<Vec<Weak<Tablespace>>>,
    tender: OnceLock<Arc<Background>>,
    /// When it was called last.
    called: Mutex<Option<Instant>>,
}

/// One life of this process as a host. Ends when it is dropped and no tablespace uses it any more.
#[derive(Debug)]
pub struct PoolHost {
    member: Arc<Member>,
    /// Of a database that does not live in the pool.
    reign: Option<Reign>,
    options: LeaseOptions,
    /// Tablespaces over the pool. They hold the member, and not this.
    spaces: Arc<Spaces>,
    /// Devices whose files were removed, or whose places others took, as far as that was told.
    displaced: Mutex<Vec<usize>>,
    /// For whoever looks at other hosts in place of the thread.
    watcher: Mutex<Option<Watcher>>,
    stop: Arc<Stop>,
    watch: Option<JoinHandle<()>>,
}

impl PoolHost {
    /// Joins the pool that the configuration names, if it names one.
    pub(crate) fn join(config: &Config) -> Result<Option<Arc<PoolHost>>> {
        let Some(settings) = &config.pool else { return Ok(None) };
        // What nobody finds again is for nobody to read.
        let keeps = settings.role.is_some();
        let outlives_process = config.data_dir.is_some() || settings.role.is_some();
        let options =
            LeaseOptions { publishes: outlives_process || settings.publishes, guards: settings.guards, keeps };
        let context = format!("pool \"{}\"", settings.location);
        let join = || PoolHost::join_as(settings, options, &config.server.listen);
        let mut joined = join();
        // Another process took the slot at the same moment.
        for _ in 0..JOIN_TRIES {
            match &joined {
                Err(error) if error.code() == SqlState::SERIALIZATION_FAILURE => joined = join(),
                _ => break,
            }
        }
        joined
            .map(|host| Some(Arc::new(host)))
            .map_err(|error| if error.context().is_none() { error.with_context(context) } else { error })
    }

    fn join_as(settings: &PoolSettings, options: LeaseOptions, address: &str) -> Result<PoolHost> {
        let pool = Arc::new(settings.open()?);
        if let Ok(left) = std::env::var(LIFE_LEFT_VARIABLE)
            && bury_life_left(&pool, &left)?
        {
            tracing::info!(
                "the life of this process in the pool before it began anew is over, and what it had there is free"
            );
        }
        let mut watcher = Watcher::new(Arc::clone(&pool));
        let is_reader = settings.role == Some(PoolRole::Reader);
        if !is_reader {
            // The one before, for one.
            watcher.bury_the_dead()?;
            make_database(&pool, &settings.database)?;
        }
        let name = settings.name.clone().unwrap_or_else(|| format!("tidepool-{}", std::process::id()));
        // At a reader's, the primary passes it sessions that read. It shares no listeners.
        let kind = if is_reader { "reader" } else { "control" };
        let control_socket = settings.role.and_then(|_| control_socket(&settings.location, &name, kind));
        let control_socket = control_socket.unwrap_or_default();
        let join = JoinOptions {
            name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: match settings.role {
                Some(PoolRole::Reader) => Role::Reader,
                Some(PoolRole::Copy) => Role::Copy,
                Some(PoolRole::Standby) => Role::Standby,
                Some(PoolRole::Primary | PoolRole::Auto) | None => Role::Primary,
            },
            database: Some(settings.database.clone()),
            address: address.to_owned(),
            control_socket,
            beat: BEAT,
        };
        let member = Arc::new(Member::join(pool, &join)?);
        let (stop, spaces) = (Arc::new(Stop::default()), Arc::default());
        if settings.role.is_some() {
            let watcher = Mutex::new(Some(watcher));
            let displaced = Mutex::default();
            return Ok(PoolHost { member, reign: None, options, spaces, displaced, watcher, stop, watch: None });
        }
        let reign = begin_reign(&member, &settings.database)?;
        let freed = member.reclaim_unnamed()?;
        if freed > 0 {
            tracing::info!("{freed} extents of the pool, which an earlier host of the database left, are free");
        }
        let watch = {
            let (member, spaces, stop) = (Arc::clone(&member), Arc::clone(&spaces), Arc::clone(&stop));
            std::thread::Builder::new()
                .name("pool".to_owned())
                .spawn(move || watch(&member, &spaces, watcher, &stop))
                .map_err(|error| Error::io("start a thread", &error))?
        };
        let (reign, watcher, displaced) = (Some(reign), Mutex::default(), Mutex::default());
        Ok(PoolHost { member, reign, options, spaces, displaced, watcher, stop, watch: Some(watch) })
    }

    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    pub fn pool(&self) -> &Arc<Pool> {
        self.member.pool()
    }

    /// For [`LIFE_LEFT_VARIABLE`].
    pub fn life_left(&self) -> String {
        life_left(self.pool(), self.member.host())
    }

    pub(crate) fn open(&self, id: TablespaceId, config: TablespaceConfig) -> Result<Arc<Tablespace>> {
        let space = Tablespace::open_leased(id, config, &self.member, self.options)?;
        let mut spaces = self.spaces.list.lock();
        spaces.retain(|space| space.strong_count() > 0);
        spaces.push(Arc::downgrade(&space));
        Ok(space)
    }

    /// Has this thread called when the pool is short of room, to empty extents in which little is.
    pub(crate) fn set_tender(&self, tender: &Arc<Background>) {
        let _ = self.spaces.tender.set(Arc::clone(tender));
    }

    /// As [`relieve`].
    pub(crate) fn relieve(&self) -> Result<()> {
        relieve(&self.member, &self.spaces)
    }
}

/// Of a host whose database lives in the pool.
impl PoolHost {
    /// What looks at other hosts. Once.
    pub(crate) fn take_watcher(&self) -> Result<Watcher> {
        self.watcher.lock().take().ok_or_else(|| Error::internal("another thread looks at the pool's hosts"))
    }

    /// What tells the database's log from others'.
    pub(crate) fn database_identity(&self) -> Result<[u8; 16]> {
        let databases = self.pool().databases()?;
        let own = databases.iter().find(|view| view.database == self.member.database());
        own.map(|view| view.identity).ok_or_else(|| Error::internal("the host's database is not in its pool"))
    }

    /// The term is still in force.
    #[inline]
    pub(crate) fn reigns(&self, reign: Reign) -> Result<bool> {
        let pool = self.pool();
        pool.told(pool.books().reigns(self.member.database(), reign))
    }

    /// The host that reigns, unless it is known to be dead, or has handed its term in.
    pub(crate) fn host_of(&self, reign: Reign) -> Result<Option<Host>> {
        let hosts = self.pool().hosts()?;
        let is_its = |view: &&HostView| reign.is_of(view.host) && view.ident.state != HostState::Dead;
        Ok(hosts.iter().find(is_its).map(|view| view.host))
    }

    /// A host's life is not known to be over.
    pub(crate) fn is_there(&self, host: Host) -> Result<bool> {
        let pool = self.pool();
        pool.told(pool.books().is_gone(host)).map(|is_gone| !is_gone)
    }

    /// A host has said that it ends by itself.
    pub(crate) fn is_leaving(&self, host: Host) -> Result<bool> {
        let (pool, books) = (self.pool(), self.pool().books());
        let ident = pool.told(books.load(books.layout.ident(host.slot)))?;
        Ok(ident.incarnation == host.incarnation && ident.state == HostState::Leaving)
    }

    pub(crate) fn beats_of(&self, host: Host) -> Result<u64> {
        let (pool, books) = (self.pool(), self.pool().books());
        pool.told(books.load(books.layout.host_number(host.slot, HostNumber::Beats))).map(|beats| beats.0)
    }

    /// Writes a number of the host's own page.
    pub(crate) fn say(&self, which: HostNumber, number: u64) -> Result<()> {
        let (pool, books) = (self.pool(), self.pool().books());
        pool.told(books.store(books.layout.host_number(self.member.host().slot, which), Number(number)))
    }

    /// Goes on to another state. 57P02 where another host took this one for dead.
    pub(crate) fn advance(&self, state: HostState) -> Result<()> {
        let pool = self.pool();
        if pool.told(pool.books().advance(self.member.host(), state))? {
            return Ok(());
        }
        Err(Error::new(SqlState::CRASH_SHUTDOWN, "another host of the pool took this one for dead"))
    }

    /// Ends the process where what it has mapped may be another's.
    pub(crate) fn stop_if_dead(&self) -> Result<()> {
        if !self.is_there(self.member.host())? {
            stop(format_args!("another host of the pool took this one for dead, and may use its memory"));
        }
        tell_displaced(self.pool(), &mut self.displaced.lock());
        stop_if_given_away(self.pool())
    }

    pub(crate) fn bury_the_dead(&self, watcher: &mut Watcher) -> Result<()> {
        if self.pool().is_readers() {
            // Hosts that may change the books do.
            return Ok(());
        }
        let buried = watcher.bury_the_dead()?;
        if buried > 0 {
            tracing::info!("{buried} hosts of the pool are dead, and what they had there is free");
        }
        Ok(())
    }

    /// 55006: the host that reigns is alive.
    pub(crate) fn in_use(&self) -> Result<Error> {
        let seen = self.member.reign()?;
        let hosts = self.pool().hosts()?;
        let by = hosts.iter().find(|view| seen.is_of(view.host));
        let name = self.pool().databases()?.into_iter().find(|view| view.database == self.member.database());
        Ok(in_use(self.pool(), &name.map_or_else(String::new, |view| view.name), by))
    }

    /// 55006 where another host of the database is alive with which this one, a copy of another pool's database or not, cannot go
    /// together: a copy has its pool's database to itself until it reigns.
    pub(crate) fn check_beside_copies(&self, is_copy: bool) -> Result<()> {
        let (own, seen) = (self.member.host(), self.member.reign()?);
        let is_other = |view: &&HostView| {
            view.host != own && view.ident.database == self.member.database() && view.ident.state != HostState::Dead
        };
        let is_in_the_way = |view: &&HostView| is_copy || (view.ident.role == Role::Copy && !seen.is_of(view.host));
        let hosts = self.pool().hosts()?;
        let Some(other) = hosts.iter().filter(is_other).find(is_in_the_way) else { return Ok(()) };
        let name = self.pool().databases()?.into_iter().find(|view| view.database == self.member.database());
        Err(in_use(self.pool(), &name.map_or_else(String::new, |view| view.name), Some(other)))
    }
}

impl Drop for PoolHost {
    fn drop(&mut self) {
        *self.stop.is_asked.lock() = true;
        self.stop.asked.notify_all();
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
        // Only once nothing of the database is in the pool: then another host may begin a term and free what is left.
        if Arc::strong_count(&self.member) == 1
            && let Some(reign) = self.reign
            && let Err(error) = self.member.end_reign(reign)
        {
            tracing::warn!(%error, "the term of the pool's database was not handed in");
        }
    }
}

/// Where other hosts on this machine find this one: beside the pool's first device, so that who shares the one shares the other.
/// `None` where no socket may have such a path. `kind`: a socket that ends with `control` is one of a host that may have been primary.
fn control_socket(location: &Location, name: &str, kind: &str) -> Option<String> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&letter);
    let name: String = name.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect();
    let path = match location {
        Location::File(path) => {
            let file = path.file_name()?.to_str()?;
            std::path::absolute(path.with_file_name(format!("{file}.{name}.{kind}"))).ok()?
        }
        // Nothing can be made beside a device.
        _ => std::env::temp_dir().join(format!("tidepool.{name}.{kind}")),
    };
    path.to_str().filter(|path| path.len() <= SOCKET_PATH_MAX).map(str::to_owned)
}

/// Ends the process where its slice of a pool that is dealt out is said to be another machine's.
fn stop_if_given_away(pool: &Pool) -> Result<()> {
    if let Some(slice) = pool.slice()
        && !slice.is_held()?
    {
        stop(format_args!("this machine was said to be dead, and its slice of the pool may be another's"));
    }
    Ok(())
}

/// Tells each device once that is not at its place any more. Nothing is wrong with what is mapped; but whoever comes finds
/// another pool or none there, and may make one.
fn tell_displaced(pool: &Pool, told: &mut Vec<usize>) {
    let displaced = pool.displaced();
    let location = |device: &usize| pool.device_location(*device).map_or_else(String::new, |at| at.to_string());
    for device in displaced.iter().filter(|device| !told.contains(device)) {
        tracing::error!(
            "\"{}\" is not what this server has mapped of its pool: the file was removed, or another one took its place. This server goes on with what it has; no other host finds that. Save what is needed, and stop this server before another one is started there",
            location(device)
        );
    }
    for device in told.iter().filter(|device| !displaced.contains(device)) {
        tracing::warn!("\"{}\" is what this server has mapped of its pool again", location(device));
    }
    *told = displaced;
}

fn make_database(pool: &Arc<Pool>, name: &str) -> Result<()> {
    if pool.databases()?.iter().any(|view| view.name == name) {
        return Ok(());
    }
    let tool = Member::join(Arc::clone(pool), &JoinOptions::tool("tidepool serve"))?;
    match tool.create_database(name, 0) {
        // Another process was first.
        Err(error) if error.code() == SqlState::DUPLICATE_DATABASE => Ok(()),
        made => made.map(drop),
    }
}

/// Begins a term over the host's database. 55006 where a host that may be alive reigns. The logs of terms before are left as
/// they are: which of them are to be read, and where they end, is for those to find out that read them.
fn begin_reign(member: &Member, database: &str) -> Result<Reign> {
    let pool = member.pool();
    let in_use = |view: Option<&HostView>| in_use(pool, database, view);
    let seen = member.reign()?;
    let hosts = pool.hosts()?;
    let reigning = hosts.iter().find(|view| seen.is_of(view.host) && view.ident.state != HostState::Dead);
    if reigning.is_some() {
        return Err(in_use(reigning));
    }
    let Some(taken) = member.take_over(seen)? else { return Err(in_use(None)) };
    match member.run(taken)? {
        Some(running) => {
            debug_assert_eq!(running.state, TermState::Running);
            Ok(running)
        }
        None => Err(in_use(None)),
    }
}

fn in_use(pool: &Pool, database: &str, by: Option<&HostView>) -> Error {
    let error = Error::new(
        SqlState::OBJECT_IN_USE,
        format!("database \"{database}\" of pool \"{}\" is in use", pool.location()),
    );
    let Some(view) = by else { return error };
    let name = view.text.as_ref().map_or("", |text| text.name.as_str());
    error
        .with_detail(format!("Host \"{name}\" in slot {} is {}.", view.host.slot.0, view.ident.state.text()))
        .with_hint("Stop it, or forget it if it is dead: tidepool pool forget.")
}

/// Gives back what the host does not use, where little of the pool is free or another host asks for room; otherwise it stays for its
/// next use, for some seconds. Says what this host needs.
fn relieve(member: &Member, spaces: &Spaces) -> Result<()> {
    member.say_needs()?;
    let room = member.pool_room()?;
    if !room.is_scarce() {
        return member.return_spare(SPARE_EXTENTS).map(drop);
    }
    // What is dropped here may be the last of a tablespace.
    let list: Vec<_> = spaces.list.lock().iter().filter_map(Weak::upgrade).collect();
    list.iter().try_for_each(|space| space.trim(KEPT_BYTES).map(drop))?;
    member.return_spare(0)?;
    if room.lack() > 0
        && let Some(tender) = spaces.tender.get()
    {
        let mut called = spaces.called.lock();
        if called.is_none_or(|when| when.elapsed() >= CALL_INTERVAL) {
            *called = Some(Instant::now());
            tender.call();
        }
    }
    Ok(())
}

fn watch(member: &Arc<Member>, spaces: &Spaces, mut watcher: Watcher, stop_asked: &Stop) {
    let (mut failing, mut looks, mut displaced) = (false, 0u32, Vec::new());
    let mut is_asked = stop_asked.is_asked.lock();
    while !*is_asked {
        if matches!(member.is_current(), Ok(false)) {
            stop(format_args!("another host of the pool took this one for dead, and may use its memory"));
        }
        looks = looks.wrapping_add(1);
        tell_displaced(member.pool(), &mut displaced);
        let relieved = if looks.is_multiple_of(LOOKS_BETWEEN) { relieve(member, spaces) } else { Ok(()) };
        let relieved = relieved.and_then(|()| stop_if_given_away(member.pool()));
        match watcher.bury_the_dead().and_then(|buried| relieved.map(|()| buried)) {
            Ok(buried) => {
                failing = false;
                if buried > 0 {
                    tracing::info!("{buried} hosts of the pool are dead, and what they had there is free");
                }
            }
            // Once until it works again.
            Err(error) if !failing => {
                failing = true;
                tracing::error!("could not look at the pool's other hosts: {error}");
            }
            Err(_) => {}
        }
        stop_asked.asked.wait_for(&mut is_asked, LOOK_INTERVAL);
    }
}
