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
use crate::member::bury;
use crate::pool::{HostText, HostView, Pool};
use crate::system;
use crate::words::{EventKind, Host, HostState};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};

/// What a watcher finds of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It beats, or has not been silent for long.
    Alive,
    /// Nothing was heard of it for as long as was asked. It may be dead, stopped, or on another machine that is.
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
                    if now.duration_since(*since) >= silence { Finding::Silent } else { Finding::Alive }
                }
            };
            findings.push((view.host, finding));
        }
        self.seen_held.retain(|host| findings.iter().any(|(there, _)| there == host));
        self.beats.retain(|host, _| findings.iter().any(|(there, _)| there == host));
        Ok(findings)
    }

    /// Whether this kernel says that a host is dead. Without having seen its lock held, only where no other kernel can have
    /// the memory mapped: a host takes its lock before its slot.
    fn death_of(&mut self, view: &HostView) -> Result<Option<Death>> {
        if view.ident.state == HostState::Dead {
            // Somebody confirmed it, and may have been cut short within freeing what it owned.
            return Ok(Some(Death::by(Evidence::ProcessEnded)));
        }
        let device = self.pool.books().memory.first_device();
        let held = device.is_byte_locked(view.host.slot.0.into());
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

    /// Runs the command that makes sure that a host is dead, such as one that destroys its virtual machine. It is told who
    /// in `TIDEPOOL_HOST_NAME`, `TIDEPOOL_HOST_SLOT` and `TIDEPOOL_HOST_INCARNATION`, and ends with success only if it is.
    pub fn fence(&self, host: Host, command: &str) -> Result<Death> {
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

/// An operator says that a host is dead: what it owned is free. It must be true.
pub fn forget(pool: &Pool, host: Host) -> Result<bool> {
    bury(pool, host, &Death::by(Evidence::Operator), EventKind::Forgotten)
}
