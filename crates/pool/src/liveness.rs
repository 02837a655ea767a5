//! How a host's death comes to be known.
//!
//! *Suspicion* may be wrong and costs nothing but a take-over. *Confirmation* frees memory, so it must be true: it is a
//! [`Death`], which only what cannot err makes.
//!
//! What the kernel says: the lock on the byte of a host's slot is held as long as its process has the pool open, and is
//! released after its memory is gone. Locks are each kernel's own: a lock that is free says something only to a watcher that
//! saw it held by this incarnation, or where no other kernel can map the same memory. Heartbeats say that a host goes on; a
//! host that is stopped has its lock and does not beat.

use crate::death::{Death, Evidence, verdict_of_lock};
use crate::layout::HostNumber;
use crate::member::bury;
use crate::pool::{HostText, HostView, Pool};
use crate::system;
use crate::words::{EventKind, Host, HostState, Incarnation, SLOTS, Slot};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};

/// What a watcher finds of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It beats, or has not been silent for long.
    Alive,
    /// Nothing was heard of it for as long as was asked, or the thread that beats has ended. It may be dead, stopped, or on
    /// another machine that is.
    Silent,
    Dead(Death),
}

/// Looks at the other hosts of a pool, again and again. What it has seen is what it may conclude from.
#[derive(Debug)]
pub struct Watcher {
    pool: Arc<Pool>,
    /// Hosts whose lock this watcher has seen held, through the file that they said they locked.
    seen_held: HashSet<Host>,
    beats: HashMap<Host, (u64, Instant)>,
    last_look: Instant,
}

impl Watcher {
    pub fn new(pool: Arc<Pool>) -> Watcher {
        Watcher { pool, seen_held: HashSet::new(), beats: HashMap::new(), last_look: Instant::now() }
    }

    /// What is known of each host that is not of this process. `silence`: after how long without a beat one is silent.
    pub fn look(&mut self, silence: Duration) -> Result<Vec<(Host, Finding)>> {
        let now = Instant::now();
        // What it did not look at, it cannot hold against others.
        let own_gap = now.duration_since(self.last_look);
        self.last_look = now;
        let own = self.pool.own().lock().clone();
        let mut findings = Vec::new();
        for view in self.pool.hosts()?.into_iter().filter(|view| !own.contains(&view.host.slot)) {
            let finding = match self.death_of(&view)? {
                Some(death) => Finding::Dead(death),
                None => {
                    let (beats, since) = self.beats.entry(view.host).or_insert((view.beats.0, now));
                    if *beats != view.beats.0 || own_gap >= silence / 2 {
                        (*beats, *since) = (view.beats.0, now);
                    }
                    let is_silent = now.duration_since(*since) >= silence || self.has_thread_ended(view.host)?;
                    if is_silent { Finding::Silent } else { Finding::Alive }
                }
            };
            findings.push((view.host, finding));
        }
        self.seen_held.retain(|host| findings.iter().any(|(there, _)| there == host));
        self.beats.retain(|host, _| findings.iter().any(|(there, _)| there == host));
        Ok(findings)
    }

    /// The thread that beats for a host has ended, says the kernel: a reason to suspect, as its process is being killed, and
    /// no more than that.
    fn has_thread_ended(&self, host: Host) -> Result<bool> {
        let books = self.pool.books();
        let word = books.memory.thread_word(books.layout.thread_word(host.slot)).load(Ordering::SeqCst);
        let ident = self.pool.told(books.load(books.layout.ident(host.slot)))?;
        Ok(word & system::OWNER_DIED != 0 && ident.incarnation == host.incarnation)
    }

    /// Sleeps until the thread that beats for a host has ended, or its life has, or for so long. True where it has: a reason
    /// to suspect it, some milliseconds after a kill however much memory its process has.
    pub fn wait_for_end(&self, host: Host, time: Duration) -> Result<bool> {
        let books = self.pool.books();
        let word = books.memory.thread_word(books.layout.thread_word(host.slot));
        let end = Instant::now() + time;
        loop {
            let value = word.load(Ordering::SeqCst);
            if self.has_thread_ended(host)? {
                // The kernel wakes one.
                system::wake_all(word);
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.pool.told(books.is_current(host))? {
                return Ok(false);
            }
            if value == 0 {
                // It has not begun to beat, or is leaving, or was killed within that: nothing will wake this. A host has its
                // lock before its slot and until after it.
                if self.pool.books().memory.first_device().is_of_one_kernel() && !is_lock_held(&self.pool, host)? {
                    return self.pool.told(books.is_current(host));
                }
                std::thread::sleep(left.min(Duration::from_millis(1)));
            } else {
                system::wait(word, value, left);
            }
        }
    }

    /// Whether this kernel says that a host is dead. Without having seen its lock held, only where no other kernel can have
    /// the memory mapped: a host takes its lock before its slot.
    fn death_of(&mut self, view: &HostView) -> Result<Option<Death>> {
        if view.ident.state == HostState::Dead {
            // Another host confirmed it, and may have been cut short within freeing what it owned.
            return Ok(Some(Death::by(Evidence::ProcessEnded)));
        }
        let device = self.pool.books().memory.first_device();
        let held = device.is_byte_locked(self.pool.lock_of(view.host.slot));
        let held = held.map_err(|error| Error::io("look at a lock of the pool", &error))?;
        // The slot may be another incarnation's since the view was taken.
        let now = self.pool.told(self.pool.books().load(self.pool.layout().ident(view.host.slot)))?;
        if now.incarnation != view.host.incarnation {
            return Ok(None);
        }
        if held && self.is_on_same_file(view)? {
            self.seen_held.insert(view.host);
        }
        let was_seen_held = device.is_of_one_kernel() || self.seen_held.contains(&view.host);
        Ok(verdict_of_lock(was_seen_held, held))
    }

    /// Its lock is on the file or device that this process has open.
    fn is_on_same_file(&self, view: &HostView) -> Result<bool> {
        let (device_number, inode) = self.pool.books().memory.first_device().kernel_identity()?;
        let is_same =
            |text: &HostText| text.lock_on == format!("{device_number}:{inode}") && text.boot_id == system::boot_id();
        Ok(view.text.as_ref().is_some_and(is_same))
    }

    /// Says that a host may be dead. It is told when it wakes, and nothing that it owns is given away.
    pub fn suspect(&self, host: Host) -> Result<bool> {
        self.pool.check_writable()?;
        let is_new = self.pool.told(self.pool.books().suspect(host))?;
        if is_new {
            self.pool.record(EventKind::Suspected, host.slot, host.incarnation.0.into())?;
        }
        Ok(is_new)
    }

    /// Ends a host of this kernel that may only sleep, memory and all, and so confirms its death. `None` where it cannot:
    /// its process is another kernel's or namespace's, or was never seen alive.
    pub fn kill(&self, host: Host, wait: Duration) -> Result<Option<Death>> {
        let ident = self.pool.told(self.pool.books().load(self.pool.layout().ident(host.slot)))?;
        let view = self.pool.host_view(host.slot, ident)?;
        let is_there = ident.incarnation == host.incarnation && self.seen_held.contains(&host);
        let Some(text) = view.text.filter(|text| {
            is_there && text.process_namespace == system::process_namespace() && text.pid != std::process::id()
        }) else {
            return Ok(None);
        };
        let Some(process) = system::Process::open(text.pid, text.start) else { return Ok(None) };
        process.kill().map_err(|error| Error::io(format_args!("kill process {}", text.pid), &error))?;
        let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        Ok(process.has_ended(wait_ms).then(|| Death::by(Evidence::ProcessEnded)))
    }

    /// Runs the command that makes sure that a host is dead, such as one that destroys its virtual machine. The command finds the host
    /// in `TIDEPOOL_HOST_NAME`, `TIDEPOOL_HOST_SLOT` and `TIDEPOOL_HOST_INCARNATION`, and ends with success only if it is.
    pub fn fence(&self, host: Host, command: &str) -> Result<Death> {
        self.pool.check_writable()?;
        self.pool.told(self.pool.books().mark_fenced(host))?;
        let ident = self.pool.told(self.pool.books().load(self.pool.layout().ident(host.slot)))?;
        let view = self.pool.host_view(host.slot, ident)?;
        let status = std::process::Command::new("/bin/sh")
            .args(["-c", command])
            .env("TIDEPOOL_HOST_NAME", view.text.map(|text| text.name).unwrap_or_default())
            .env("TIDEPOOL_HOST_SLOT", host.slot.0.to_string())
            .env("TIDEPOOL_HOST_INCARNATION", host.incarnation.0.to_string())
            .status()
            .map_err(|error| Error::io("run the fence command", &error))?;
        if !status.success() {
            return Err(Error::new(SqlState::IO_ERROR, format!("the fence command for {host} failed: {status}"))
                .with_detail("What the host owns stays in quarantine."));
        }
        self.pool.record(EventKind::Fenced, host.slot, host.incarnation.0.into())?;
        Ok(Death::by(Evidence::FenceCommand))
    }

    /// Frees what a dead host owned, and its slot.
    pub fn bury(&self, host: Host, death: &Death) -> Result<bool> {
        bury(&self.pool, host, death, EventKind::Died)
    }

    /// Buries all that are dead. How many.
    pub fn bury_the_dead(&mut self) -> Result<usize> {
        let mut buried = 0;
        for (host, finding) in self.look(Duration::MAX)? {
            if let Finding::Dead(death) = finding {
                buried += usize::from(self.bury(host, &death)?);
            }
        }
        Ok(buried)
    }
}

/// Whether a host's process is one of this kernel and namespace, so that its number means something here.
pub fn is_here(text: &HostText) -> bool {
    text.boot_id == system::boot_id() && text.process_namespace == system::process_namespace()
}

/// Asks a host's process to stop, and waits so long for its end. False if it has not ended, or is none of this kernel.
pub fn stop(text: &HostText, wait: Duration) -> Result<bool> {
    if !is_here(text) {
        return Ok(false);
    }
    let Some(process) = system::Process::open(text.pid, text.start) else { return Ok(true) };
    process.terminate().map_err(|error| Error::io(format_args!("stop process {}", text.pid), &error))?;
    Ok(process.has_ended(i32::try_from(wait.as_millis()).unwrap_or(i32::MAX)))
}

/// Whether a host is on this kernel, and none of its threads runs code of its program any more, or ever will. The kernel may still have to free its
/// memory, which is what its lock waits for.
pub fn runs_no_more(text: &HostText) -> bool {
    is_here(text) && !system::runs(text.pid, text.start)
}

/// Another process of this kernel, or this one, holds the lock of a host's slot.
pub fn is_lock_held(pool: &Pool, host: Host) -> Result<bool> {
    if pool.own().lock().contains(&host.slot) {
        return Ok(true);
    }
    let held = pool.books().memory.first_device().is_byte_locked(pool.lock_of(host.slot));
    held.map_err(|error| Error::io("look at a lock of the pool", &error))
}

/// How long a host that another machine may have is watched before it is forgotten: two hundred beats.
const FORGET_WATCH: Duration = Duration::from_secs(1);

/// An operator says that a host is dead: what it owned is free. It must be true. 55006 where this kernel knows better, or where
/// the host beats, unless the operator insists.
pub fn forget(pool: &Pool, host: Host, insists: bool) -> Result<bool> {
    let is_alive = |how: &str| {
        Error::new(SqlState::OBJECT_IN_USE, format!("{host} is alive: {how}"))
            .with_detail("If it were forgotten, it would go on storing to memory that is given to others.")
    };
    if !insists && is_lock_held(pool, host)? {
        return Err(is_alive("its lock is held on this machine")
            .with_hint("End its process, with SIGKILL if it does not answer."));
    }
    if !insists && beats(pool, host)? {
        return Err(is_alive("it beats, on another machine").with_hint("End its process, or its machine."));
    }
    bury(pool, host, &Death::by(Evidence::Operator), EventKind::Forgotten)
}

/// A host that this kernel says nothing of goes on. One that does not beat may be stopped, and wake.
fn beats(pool: &Pool, host: Host) -> Result<bool> {
    let books = pool.books();
    if books.memory.first_device().is_of_one_kernel() {
        return Ok(false);
    }
    let count = || pool.told(books.load(books.layout.host_number(host.slot, HostNumber::Beats)));
    let (first, end) = (count()?, Instant::now() + FORGET_WATCH);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
        if count()? != first {
            // A later life of the slot begins anew.
            return Ok(pool.told(books.load(books.layout.ident(host.slot)))?.incarnation == host.incarnation);
        }
    }
    Ok(false)
}

/// Says in which life the process that puts another program in its place was a host: `exec` unmaps all, so the next one knows that
/// this life is over, where a lock would say it to others only if they saw it held.
pub fn life_left(pool: &Pool, host: Host) -> String {
    let identity: String = pool.superblock().identity.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{identity}:{}:{}:{}", host.slot.0, host.incarnation.0, std::process::id())
}

/// Buries the life that this process said it would leave. The text is of an environment that others may have inherited, so
/// it counts only in the same process, for the same pool.
pub fn bury_life_left(pool: &Pool, text: &str) -> Result<bool> {
    let fields: Vec<&str> = text.split(':').collect();
    let &[_, slot, incarnation, _] = fields.as_slice() else { return Ok(false) };
    let (Ok(slot), Ok(incarnation)) = (slot.parse(), incarnation.parse()) else { return Ok(false) };
    let host = Host { slot: Slot(slot), incarnation: Incarnation(incarnation) };
    if usize::from(slot) >= SLOTS || life_left(pool, host) != text || pool.own().lock().contains(&host.slot) {
        return Ok(false);
    }
    bury(pool, host, &Death::by(Evidence::ProcessEnded), EventKind::Died)
}
