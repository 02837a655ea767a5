use crate::extents::{CHUNK_PAGES, Extents};
use crate::found::Kept;
use crate::leased::{Class, Leased};
use crate::ledger::Ledger;
use crate::owners::OwnerTable;
use crate::pacers::Pacers;
use crate::shape::{Kind, Shape};
use crate::{Contents, LedgerRow, Left, Purpose, Region};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, TryLockError};
use tidepool_base::{ByteSize, Error, Result, SqlState, TablespaceId};
use tidepool_device::paged::{OWNERS_MAX, Paged};
use tidepool_device::remote::{Absence, Tenant};
use tidepool_device::{
    Access, CostModel, Location, Mapping, PAGE_BYTES, Pacer, PacingCounters, PacingTotals, Profile, Window, stop,
};

const _: () = assert!(Purpose::ALL.len() <= OWNERS_MAX);

#[derive(Clone, Debug, PartialEq)]
pub struct TablespaceConfig {
    pub name: String,
    pub location: Location,
    /// Of all locations together; in a pool, the most that it leases. `None`: all of devices of fixed size, or whatever a pool
    /// has; otherwise required.
    pub size_bytes: Option<u64>,
    /// Pace accesses as this device; for paged memory: the network that pages come over. `None`: the real thing.
    pub profile: Option<Profile>,
    /// Of several locations that differ in this: one for each, in their order. Otherwise empty, and `profile` is for
    /// all.
    pub profiles: Vec<Option<Profile>>,
    pub huge_pages: bool,
    /// Memory that it takes when it is opened, rather than when each page is used first, and keeps. At most its size is
    /// taken. What is opened is not yet populated: see [`Tablespace::populate`].
    pub populate_bytes: u64,
}

impl TablespaceConfig {
    /// 22023 when more is to be populated than there is, or when that makes no sense.
    pub fn check_populate(&self) -> Result<()> {
        if self.populate_bytes == 0 {
            return Ok(());
        }
        if let Location::Paged { .. } | Location::Node { .. } = self.location {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("tablespace \"{}\" is paged and cannot be populated", self.name),
            )
            .with_hint("Its pages come when they are used; what stays is said by the size of its cache."));
        }
        if self.location == Location::Pool {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("tablespace \"{}\" is in a pool and cannot be populated", self.name),
            )
            .with_hint("A pool is populated when it is made: tidepool pool create --populate."));
        }
        match self.size_bytes {
            Some(size) if self.populate_bytes > size => Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!(
                    "{} of tablespace \"{}\" are to be populated, and it has {}",
                    ByteSize(self.populate_bytes),
                    self.name,
                    ByteSize(size)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The profile of one of its locations.
    pub fn profile_of(&self, part: usize) -> Option<&Profile> {
        match self.profiles.get(part) {
            Some(profile) => profile.as_ref(),
            None => self.profile.as_ref(),
        }
    }

    /// The profile's name, or those of several, joined by `+`, with `none` for a location that has none.
    pub fn profile_names(&self) -> Option<String> {
        if self.profiles.is_empty() {
            return self.profile.as_ref().map(|profile| profile.name.clone());
        }
        let name = |profile: &Option<Profile>| profile.as_ref().map_or("none", |profile| &profile.name).to_owned();
        Some(self.profiles.iter().map(name).collect::<Vec<_>>().join("+"))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TablespaceUsage {
    pub size_bytes: u64,
    /// Owned by a purpose other than `Free`.
    pub used_bytes: u64,
    /// Backed by memory, whoever owns it.
    pub resident_bytes: u64,
}

/// Small operations that are accounted together. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherSlot {
    /// Of an index.
    Keys = 0,
    /// Versions that are read.
    ReadVersions = 1,
    /// Versions that are written.
    WrittenVersions = 2,
}

impl GatherSlot {
    const ALL: [GatherSlot; tidepool_device::GATHER_SLOTS] =
        [GatherSlot::Keys, GatherSlot::ReadVersions, GatherSlot::WrittenVersions];

    fn purpose(self) -> Purpose {
        match self {
            GatherSlot::Keys => Purpose::Index,
            GatherSlot::ReadVersions | GatherSlot::WrittenVersions => Purpose::Delta,
        }
    }
}

/// A run of pages that was just taken.
#[derive(Clone, Copy, Debug)]
pub struct PageRun {
    pub address: NonNull<u8>,
    /// Known to read as zeroes.
    pub zeroed: bool,
}

/// A place in which data can live.
///
/// What counts as resident: a page from its first owner on (with huge pages: its whole 2 MiB), until it is given back
/// to the system. An owner that never touches a page makes this an upper bound. The page table of paged memory knows
/// better: mapped pages and copies, which a page may have both.
///
/// The books (0.1 % of what was ever touched) are the process's memory, not the tablespace's.
///
/// It reserves addresses for more than it holds, so that it can grow and shrink while it is in use
/// ([`Tablespace::resize`]).
#[derive(Debug)]
pub struct Tablespace {
    id: TablespaceId,
    name: String,
    /// As it is now. Replaced when the tablespace changes.
    config: RwLock<Arc<TablespaceConfig>>,
    /// By its location: asked at every operation.
    lies_far: AtomicBool,
    /// What is mapped, and of what. Held while that changes, longer than anybody should wait: to be tried for only.
    shape: Mutex<Shape>,
    /// Bytes of open pages.
    size_bytes: AtomicU64,
    pacers: Pacers,
    /// What pacing accounted, by purpose.
    paced: [PacingTotals; Purpose::ALL.len()],
    ledger: Ledger,
    /// Stay backed, though nobody uses them.
    pub(crate) pages_kept: AtomicUsize,
    /// Dropped from the registry: takes no more.
    closed: AtomicBool,
    /// It is memory in place of what its configuration names.
    stands_in: AtomicBool,
    /// What an earlier owner left there can be attached.
    pub(crate) finds: AtomicBool,
    /// Runs of bytes that had memory when the first was.
    pub(crate) backed: OnceLock<Vec<Range<usize>>>,
    pub(crate) contents: Mutex<Option<Contents>>,
    pub(crate) kept: Mutex<Kept>,
    /// Some pages may be closed that have owners.
    pub(crate) is_shrinking: AtomicBool,
    /// A mutex of the standard library: a futex, so that waiting for it never allocates. It is locked inside the global
    /// allocator. Innermost of all locks: nothing is called under it but the mapping's system calls.
    extents: Mutex<Extents>,
    /// Of one over a pool.
    pub(crate) leased: Option<Box<Leased>>,
    // Last, and in this order: the address range leaves the table of owners before it is unmapped.
    owners: OwnerTable,
    pub(crate) window: Window,
}

/// `len` in whole pages.
pub(crate) fn page_bytes(len: usize) -> usize {
    len.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

impl Tablespace {
    pub fn open(id: TablespaceId, config: TablespaceConfig) -> Result<Arc<Tablespace>> {
        Tablespace::open_found(id, config, None)
    }

    /// As `open`; if the device holds what was left there, that stays, to be attached. 55000 when it does not, and is needed.
    pub fn open_found(id: TablespaceId, config: TablespaceConfig, left: Option<&Left>) -> Result<Arc<Tablespace>> {
        let context = format!("tablespace \"{}\" at {}", config.name, config.location);
        Tablespace::try_open(id, config, left)
            .map_err(|error| if error.context().is_none() { error.with_context(context) } else { error })
    }

    /// As `open`, of one at a memory node: `tenant` is who asks there.
    pub fn open_at_node(
        id: TablespaceId,
        config: TablespaceConfig,
        tenant: &Tenant,
        absence: Absence,
    ) -> Result<Arc<Tablespace>> {
        let context = format!("tablespace \"{}\" at {}", config.name, config.location);
        Tablespace::open_node(id, config, tenant, absence)
            .map_err(|error| if error.context().is_none() { error.with_context(context) } else { error })
    }

    /// Memory of the same size and the same profile, for a tablespace whose device cannot be opened. It is called what the configuration
    /// says; nothing is left in it for a later process. 22023 where no size is given.
    pub fn open_in_place_of(id: TablespaceId, config: TablespaceConfig) -> Result<Arc<Tablespace>> {
        if config.size_bytes.is_none() {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("how large tablespace \"{}\" is to be is not known without its device", config.name),
            ));
        }
        let profile = config.profile.clone().or_else(|| config.profiles.iter().flatten().next().cloned());
        let memory = TablespaceConfig { location: Location::Anon, profile, profiles: Vec::new(), ..config.clone() };
        let space = Tablespace::open(id, memory)?;
        space.set_config(config);
        space.stands_in.store(true, Ordering::Relaxed);
        Ok(space)
    }

    /// Whether it is memory in place of what its configuration names.
    pub fn stands_in(&self) -> bool {
        self.stands_in.load(Ordering::Relaxed)
    }

    fn try_open(id: TablespaceId, config: TablespaceConfig, left: Option<&Left>) -> Result<Arc<Tablespace>> {
        if config.location == Location::Pool {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "this process is not attached to a pool",
            )
            .with_hint("Name one: tidepool serve --pool LOCATION, or [pool] location in tidepool.toml."));
        }
        let is_node = matches!(config.location, Location::Node { .. });
        if is_node || matches!(config.location, Location::Paged { .. }) {
            return match left.filter(|left| left.is_needed) {
                Some(left) => Err(left.missing(&config.location)),
                None if is_node => Tablespace::open_node(id, config, &Tenant::passing()?, Absence::Refused),
                None => Tablespace::open_paged(id, config),
            };
        }
        let (window, shape) = Shape::open(&config, left)?;
        let finds = shape.parts.iter().any(|part| part.keeps);
        let space = Tablespace::new(id, config, window, shape)?;
        space.finds.store(finds, Ordering::Relaxed);
        space.map_all().inspect_err(|_| space.lock_shape().undo_open(&space.window))?;
        if let Some(left) = left {
            space.keep_left(left);
        }
        Ok(space)
    }

    /// A tablespace over any mapping, without a superblock: for Miri and for tests, with `Mapping::heap`. It stays as
    /// large as it is.
    pub fn over(id: TablespaceId, config: TablespaceConfig, mapping: Mapping) -> Result<Arc<Tablespace>> {
        let pages = mapping.len() / PAGE_BYTES;
        let space = Tablespace::new(id, config, Window::fixed(mapping), Shape::fixed())?;
        space.open_pages(0..pages);
        Ok(space)
    }

    pub(crate) fn new(
        id: TablespaceId,
        config: TablespaceConfig,
        window: Window,
        shape: Shape,
    ) -> Result<Arc<Tablespace>> {
        Tablespace::with_leases(id, config, window, shape, None)
    }

    pub(crate) fn with_leases(
        id: TablespaceId,
        config: TablespaceConfig,
        window: Window,
        shape: Shape,
        leased: Option<Box<Leased>>,
    ) -> Result<Arc<Tablespace>> {
        let pacers = Pacers::new(match &config.profile {
            // A fault waits for the network by itself: nothing may be charged twice.
            Some(_) if window.paged().is_some() => None,
            Some(profile) if matches!(shape.kind, Kind::Fixed | Kind::Leased) => {
                Some(CostModel::on_this_machine(profile.clone())?)
            }
            _ => shape.cost_model()?,
        });
        let extents = Extents::new(window.len() / PAGE_BYTES)?;
        let owners = OwnerTable::register(window.base().as_ptr(), window.len())?;
        Ok(Arc::new(Tablespace {
            id,
            name: config.name.clone(),
            lies_far: AtomicBool::new(lies_far(&config, leased.as_deref())),
            config: RwLock::new(Arc::new(config)),
            shape: Mutex::new(shape),
            size_bytes: AtomicU64::new(0),
            pacers,
            paced: Default::default(),
            ledger: Ledger::default(),
            pages_kept: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            stands_in: AtomicBool::new(false),
            finds: AtomicBool::new(false),
            backed: OnceLock::new(),
            contents: Mutex::default(),
            kept: Mutex::default(),
            is_shrinking: AtomicBool::new(false),
            extents: Mutex::new(extents),
            leased,
            owners,
            window,
        }))
    }

    pub fn id(&self) -> TablespaceId {
        self.id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// As it is now.
    pub fn config(&self) -> Arc<TablespaceConfig> {
        self.config.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    pub(crate) fn lock_shape(&self) -> MutexGuard<'_, Shape> {
        self.shape.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// `None` while a change is under way.
    pub(crate) fn try_lock_shape(&self) -> Option<MutexGuard<'_, Shape>> {
        match self.shape.try_lock() {
            Ok(shape) => Some(shape),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn set_config(&self, config: TablespaceConfig) {
        // Relaxed: what is decided by it is right for either.
        self.lies_far.store(lies_far(&config, self.leased.as_deref()), Ordering::Relaxed);
        *self.config.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Arc::new(config);
    }

    /// Accounts accesses that this thread has just made side by side, and spends here what the device that the
    /// tablespace stands for would have cost. Returns the nanoseconds accounted; none when the tablespace names no
    /// profile.
    #[inline]
    pub fn charge(&self, purpose: Purpose, accesses: &[Access]) -> u64 {
        match self.pacers.current() {
            None => 0,
            Some(pacer) => self.spent(pacer, purpose, accesses).stall_ns,
        }
    }

    /// As `charge`; returns all that was accounted.
    pub fn spend(&self, purpose: Purpose, accesses: &[Access]) -> PacingCounters {
        self.pacers.current().map(|pacer| self.spent(pacer, purpose, accesses)).unwrap_or_default()
    }

    /// As `charge`, of one small operation among many: see [`Pacer::gather`]. What a thread has gathered last is accounted with what
    /// follows.
    #[inline]
    pub fn gather(&self, slot: GatherSlot, accesses: &[Access]) {
        if let Some(pacer) = self.pacers.current()
            && let Some(spent) = pacer.gather(slot as usize, accesses)
        {
            self.paced[slot.purpose() as usize].add(&spent);
        }
    }

    /// Where an operation comes to memory that it asked for just now, and holds no lock: a fiber that may pause lets others go on
    /// meanwhile, if the memory is far.
    #[inline]
    pub fn arrive(&self) {
        if tidepool_fiber::may_pause() {
            self.arrive_far();
        }
    }

    fn arrive_far(&self) {
        match self.pacers.current() {
            Some(pacer) => pacer.arrive(),
            None if self.is_far() => tidepool_fiber::pause(),
            None => {}
        }
    }

    /// Accounts what this thread has gathered.
    pub fn settle_gathered(&self) {
        if let Some(pacer) = self.pacers.current() {
            for slot in GatherSlot::ALL {
                self.paced[slot.purpose() as usize].add(&pacer.settle(slot as usize));
            }
        }
    }

    /// Takes time that this thread spent on keeping accounts off what it owes here.
    pub fn credit(&self, ns: u64) {
        if let Some(pacer) = self.pacers.current() {
            pacer.credit(ns);
        }
    }

    #[inline(never)]
    fn spent(&self, pacer: &Pacer, purpose: Purpose, accesses: &[Access]) -> PacingCounters {
        let spent = pacer.spend(accesses);
        self.paced[purpose as usize].add(&spent);
        spent
    }

    /// What pacing accounted since the tablespace was opened, for each purpose that there was anything for. Of other threads' small
    /// operations the last few may be missing.
    pub fn paced(&self) -> Vec<(Purpose, PacingCounters)> {
        self.settle_gathered();
        let counters = Purpose::ALL.into_iter().map(|purpose| (purpose, self.paced[purpose as usize].get()));
        counters.filter(|(_, counters)| *counters != PacingCounters::default()).collect()
    }

    /// The pacer, when the tablespace names a profile and is not paged.
    pub fn pacer(&self) -> Option<&Pacer> {
        self.pacers.current()
    }

    pub(crate) fn set_cost_model(&self, model: Option<CostModel>) {
        self.pacers.replace(model);
    }

    /// Whether its memory is farther than this machine's own: as it is paced, or by what it lies in.
    pub fn is_far(&self) -> bool {
        match self.pacer() {
            Some(pacer) => pacer.model().read_latency_ns() > pacer.model().local().read_latency_ns,
            None => self.lies_far.load(Ordering::Relaxed),
        }
    }

    /// The page table, when the tablespace is paged. A page's owner there is its purpose's number.
    pub fn paged(&self) -> Option<&Paged> {
        self.window.paged()
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// An owned run of `len` bytes, aligned to a page, of any content, counted in whole pages under `purpose` until
    /// dropped. 53200 naming the tablespace when it does not fit.
    pub fn allocate(self: &Arc<Self>, len: usize, purpose: Purpose) -> Result<Region> {
        let address = if len == 0 {
            self.window.base()
        } else {
            // Whoever rounds up beyond the address space asks for more than there is.
            let bytes = len.checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX / PAGE_BYTES * PAGE_BYTES);
            self.allocate_pages(bytes, PAGE_BYTES, purpose).ok_or_else(|| self.full(len))?
        };
        // SAFETY: the pages were just taken; with `len` zero there are none.
        Ok(unsafe { Region::new(self.clone(), address, len, purpose) })
    }

    /// Why `len` bytes were not to be had: 53200 naming the tablespace, or 53100 naming the pool that it leases from.
    pub fn full(&self, len: usize) -> Error {
        if self.closed.load(Ordering::Relaxed) {
            return Error::new(SqlState::UNDEFINED_OBJECT, format!("tablespace \"{}\" does not exist", self.name));
        }
        if let Some(leased) = &self.leased {
            return self.full_of_leases(leased, len);
        }
        let (free, longest) = {
            let extents = self.lock();
            (extents.free_pages(), extents.longest_free_run())
        };
        let size = |pages: usize| ByteSize((pages * PAGE_BYTES) as u64);
        let wanted = ByteSize(len as u64);
        let detail = if len <= longest * PAGE_BYTES && self.window.needs_commit() {
            format!("{wanted} are wanted, but the file system of {} has no room left.", self.config().location)
        } else {
            format!(
                "{wanted} are wanted; {} of {} are free, {} of them in one piece.",
                size(free),
                ByteSize(self.size_bytes()),
                size(longest)
            )
        };
        Error::new(SqlState::OUT_OF_MEMORY, format!("tablespace \"{}\" is full", self.name))
            .with_detail(detail)
            .with_hint("Make the tablespace larger, or put less into it.")
    }

    /// Pages for `purpose`: `len` is a multiple of 4096, `align` a power of two.
    /// Never blocks on anything but the tablespace's own mutex and never allocates from the global allocator.
    pub fn allocate_pages(&self, len: usize, align: usize, purpose: Purpose) -> Option<NonNull<u8>> {
        self.allocate_run(len, align, purpose).map(|run| run.address)
    }

    /// As `allocate_pages`, and says whether the memory is known to be zeroed.
    pub fn allocate_run(&self, len: usize, align: usize, purpose: Purpose) -> Option<PageRun> {
        self.take(len, align, purpose, 0)
    }

    /// As `allocate_run`, for the query heap's arena `tag` (from one to [`crate::TAG_MAX`]), which [`crate::page_tag`]
    /// then answers for these pages.
    ///
    /// A run never ends where the middle of another arena's run begins: jemalloc would take the two for neighbours of
    /// one arena and join them (see `tidepool_heap`'s arenas).
    pub fn allocate_tagged(&self, len: usize, align: usize, tag: u16) -> Option<PageRun> {
        self.take(len, align, Purpose::Heap, tag)
    }

    fn take(&self, len: usize, align: usize, purpose: Purpose, tag: u16) -> Option<PageRun> {
        debug_assert!(len.is_multiple_of(PAGE_BYTES) && align.is_power_of_two());
        let count = len / PAGE_BYTES;
        let alignment = (align / PAGE_BYTES).max(1);
        let mut extents = self.lock_book_of(purpose);
        if count == 0 || self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let run = match self.place(&mut extents, count, alignment, tag) {
            Some(run) => run,
            None => {
                drop(extents);
                let leased = self.leased.as_deref()?;
                let class = Class::of(purpose);
                let mut taken = self.lease_and_take(leased, class, count, alignment, tag);
                if taken.is_none() && self.ask_others(leased, count) {
                    taken = self.lease_and_take(leased, class, count, alignment, tag);
                }
                let taken = taken?;
                extents = taken.0;
                taken.1
            }
        };
        if let Some(leased) = self.leased.as_deref()
            && leased.is_written_once(Class::of(purpose))
        {
            leased.note_taken(&run);
        }
        // Under the lock, so that `close` sees all that is taken.
        self.ledger.add(purpose, len as u64);
        let touched = extents.touched_in(run.clone());
        if touched == count {
            self.note_free(&extents);
        } else if !self.window.needs_commit() {
            self.note_touched(extents, &run);
        } else if let Some(extents) = self.commit(extents, &run) {
            self.note_touched(extents, &run);
        } else {
            self.ledger.subtract(purpose, len as u64);
            return None;
        }
        if tag != 0 {
            // Not under the lock: until this is done the pages have no tag, as if each started a run. For the first
            // that is true, and nobody can end at another while all of them are in use.
            self.owners.set(run.clone(), tag);
        }
        self.set_page_owner(&run, purpose);
        let zeroed = touched == 0 && self.window.is_zeroed();
        Some(PageRun { address: self.address_of(run.start), zeroed })
    }

    /// Tells the page table, if there is one, whose pages these are, which are the caller's.
    fn set_page_owner(&self, run: &Range<usize>, purpose: Purpose) {
        if let Some(paged) = self.paged() {
            paged.set_owner(run.start * PAGE_BYTES..run.end * PAGE_BYTES, purpose as usize);
        }
    }

    /// Takes `count` pages where `tag` may have them. What comes in whole huge pages is laid over them, if there is such a place.
    pub(crate) fn place(
        &self,
        extents: &mut Extents,
        count: usize,
        alignment: usize,
        tag: u16,
    ) -> Option<Range<usize>> {
        // What comes in whole huge pages is laid over them, if there is such a place.
        let chunked = count.is_multiple_of(CHUNK_PAGES) && alignment < CHUNK_PAGES;
        let run = if chunked { self.place_at(extents, count, CHUNK_PAGES, tag, Extents::take_easily) } else { None };
        if run.is_some() { run } else { self.place_at(extents, count, alignment, tag, Extents::take) }
    }

    fn place_at(
        &self,
        extents: &mut Extents,
        count: usize,
        alignment: usize,
        tag: u16,
        take: fn(&mut Extents, usize, usize, usize) -> Option<Range<usize>>,
    ) -> Option<Range<usize>> {
        // Alignment is a matter of addresses, and page 0 lies where the mapping does.
        let origin = self.window.base().as_ptr().addr() / PAGE_BYTES % alignment;
        let run = take(extents, count, alignment, origin)?;
        if tag == 0 || !self.owners.is_inside_another(run.end, tag) {
            return Some(run);
        }
        extents.give_back(run);
        // With a page to spare, given back at once, what follows the run is free.
        let roomy = take(extents, count.checked_add(1)?, alignment, origin)?;
        let run = roomy.start..roomy.end - 1;
        extents.give_back(run.end..roomy.end);
        Some(run)
    }

    /// Reserves the blocks beneath a run that was just taken. On failure the run is given back.
    fn commit<'a>(&'a self, extents: MutexGuard<'a, Extents>, run: &Range<usize>) -> Option<MutexGuard<'a, Extents>> {
        if run.len() < CHUNK_PAGES {
            // A system call for every small run would cost more than the memory: take its surroundings along. The lock
            // is held, as the surroundings are nobody's.
            let mut extents = extents;
            let around = extents.chunks_around(run);
            if self.window.commit(bytes_of(&around)).is_ok() {
                extents.set_touched(around, true);
                return Some(extents);
            }
            if self.window.commit(bytes_of(run)).is_ok() {
                return Some(extents);
            }
            extents.give_back(run.clone());
            return None;
        }
        // The run is this caller's, so others may go on meanwhile.
        drop(extents);
        let result = self.window.commit(bytes_of(run));
        let mut extents = self.lock();
        match result {
            Ok(()) => Some(extents),
            Err(_) => {
                extents.give_back(run.clone());
                None
            }
        }
    }

    fn note_touched(&self, mut extents: MutexGuard<'_, Extents>, run: &Range<usize>) {
        // Chunks are aligned to 2 MiB of address space only where the mapping is; elsewhere there are no huge pages.
        let touched = if self.window.has_huge_pages() { extents.chunks_around(run) } else { run.clone() };
        extents.set_touched(touched, true);
        self.note_free(&extents);
    }

    pub(crate) fn note_free(&self, extents: &Extents) {
        if let Some(leased) = self.leased.as_deref() {
            return self.note_leases(leased);
        }
        // A used page may be untouched for the moment between being taken and being committed.
        let free = extents.touched_pages().saturating_sub(extents.used_pages());
        self.ledger.set(Purpose::Free, (free * PAGE_BYTES) as u64);
    }

    /// # Safety
    /// `[address, address + len)` came from `allocate_pages` (whole or part of a run) with the same purpose and is no
    /// longer used.
    pub unsafe fn free_pages(&self, address: NonNull<u8>, len: usize, purpose: Purpose) {
        let run = self.pages_of(address, len);
        if let Some(leased) = self.leased.as_deref() {
            let returns = purpose == Purpose::Main || (purpose == Purpose::Delta && run.len() >= CHUNK_PAGES);
            return self.give_back_leased(leased, run, purpose, returns);
        }
        self.give_back(run.clone(), purpose);
        // Main comes and goes with tables. Delta is rewritten all the time, as heaps are: small pieces of both stay for
        // the next use, until they are trimmed.
        if purpose == Purpose::Main || (purpose == Purpose::Delta && run.len() >= CHUNK_PAGES) {
            self.release_chunks(&run);
        }
    }

    /// # Safety
    /// `[address, address + len)` came from `allocate_tagged` (whole or part of a run) with the same tag and is no
    /// longer used.
    pub unsafe fn free_tagged(&self, address: NonNull<u8>, len: usize, tag: u16) {
        let run = self.pages_of(address, len);
        // First: from the moment they are given back the pages may be another's.
        self.owners.clear(run.clone(), tag);
        if let Some(leased) = self.leased.as_deref() {
            return self.give_back_leased(leased, run, Purpose::Heap, false);
        }
        self.give_back(run, Purpose::Heap);
    }

    pub(crate) fn pages_of(&self, address: NonNull<u8>, len: usize) -> Range<usize> {
        let offset = address.as_ptr().addr().wrapping_sub(self.window.base().as_ptr().addr());
        if offset >= self.window.len() || len > self.window.len() - offset {
            stop(format_args!("{len} bytes at {address:p} are given back to a tablespace that does not hold them"));
        }
        offset / PAGE_BYTES..(offset + len) / PAGE_BYTES
    }

    fn give_back(&self, run: Range<usize>, purpose: Purpose) {
        let bytes = (run.len() * PAGE_BYTES) as u64;
        // Before they may be another's. Not under the lock: the page table makes its caller wait for pages on their
        // way.
        self.set_page_owner(&run, Purpose::Free);
        let mut extents = self.lock();
        extents.give_back(run);
        self.note_free(&extents);
        drop(extents);
        self.ledger.subtract(purpose, bytes);
    }

    pub fn contains(&self, address: *const u8) -> bool {
        self.address_range().contains(&address.addr())
    }

    pub fn address_range(&self) -> Range<usize> {
        let start = self.window.base().as_ptr().addr();
        start..start + self.window.len()
    }

    pub fn usage(&self) -> TablespaceUsage {
        let used_bytes = self.used_bytes();
        TablespaceUsage {
            size_bytes: self.size_bytes(),
            used_bytes,
            resident_bytes: match self.paged() {
                Some(paged) => paged.resident_bytes(),
                None => {
                    (used_bytes + self.ledger.bytes(Purpose::Free)).saturating_sub(self.ledger.bytes(Purpose::Reserved))
                }
            },
        }
    }

    /// Bytes that can still be taken, in pieces. Takes no lock.
    pub fn available_bytes(&self) -> u64 {
        match &self.leased {
            Some(leased) => leased.available_bytes(self.used_bytes()),
            None => self.size_bytes().saturating_sub(self.used_bytes()),
        }
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        Purpose::ALL
            .into_iter()
            .filter(|purpose| *purpose != Purpose::Free)
            .map(|purpose| self.ledger.bytes(purpose))
            .sum()
    }

    /// What stays until somebody drops or moves it: all but the heaps of statements.
    pub(crate) fn lasting_bytes(&self) -> u64 {
        let passing = self.ledger.bytes(Purpose::Heap) + self.ledger.bytes(Purpose::Reserved);
        self.used_bytes().saturating_sub(passing)
    }

    /// What `purpose` holds now.
    pub fn bytes(&self, purpose: Purpose) -> u64 {
        self.ledger.bytes(purpose)
    }

    /// One row for each purpose, whether it holds anything or not.
    pub fn ledger(&self) -> Vec<LedgerRow> {
        self.ledger.rows(&self.name)
    }

    /// Lets pages be taken that were just mapped.
    pub(crate) fn open_pages(&self, run: Range<usize>) {
        let mut extents = self.lock();
        extents.open(run);
        self.note_size(&extents);
    }

    /// Keeps pages from being taken. Their owners keep them.
    pub(crate) fn close_pages(&self, run: Range<usize>) {
        let mut extents = self.lock();
        extents.close(run);
        self.note_size(&extents);
    }

    fn note_size(&self, extents: &Extents) {
        self.size_bytes.store((extents.open_pages() * PAGE_BYTES) as u64, Ordering::Relaxed);
    }

    /// Takes one page that was just opened, for a device's header.
    pub(crate) fn take_header(&self, page: usize) -> Result<()> {
        let mut extents = self.lock();
        if !extents.take_at(page..page + 1) {
            return Err(Error::internal("a device's first page is taken"));
        }
        extents.set_touched(page..page + 1, true);
        self.ledger.add(Purpose::Metadata, PAGE_BYTES as u64);
        self.note_free(&extents);
        Ok(())
    }

    /// Takes pages that an earlier owner had, if they are free.
    pub(crate) fn take_found(&self, run: &Range<usize>, purpose: Purpose) -> Option<NonNull<u8>> {
        let mut extents = self.lock();
        if self.closed.load(Ordering::Relaxed) || !extents.take_at(run.clone()) {
            return None;
        }
        let bytes = (run.len() * PAGE_BYTES) as u64;
        self.ledger.add(purpose, bytes);
        drop(extents);
        // What is not there any more reads as zeroes, which takes memory, too.
        if !self.is_backed(&bytes_of(run)) && self.window.commit(bytes_of(run)).is_err() {
            self.give_back(run.clone(), purpose);
            return None;
        }
        self.note_touched(self.lock(), run);
        Some(self.address_of(run.start))
    }

    /// Takes free pages, the first from page `from` on, for a moment.
    pub(crate) fn take_unused(&self, from: usize, count_max: usize) -> Option<Range<usize>> {
        self.lock().take_free_from(from, count_max)
    }

    /// Puts back what `take_unused` took, whose content is gone.
    pub(crate) fn put_back(&self, run: Range<usize>) {
        let mut extents = self.lock();
        extents.set_touched(run.clone(), false);
        extents.give_back(run);
        self.note_free(&extents);
    }

    /// Whether all of these pages may be taken.
    pub(crate) fn is_free_and_open(&self, run: Range<usize>) -> bool {
        let extents = self.lock();
        extents.closed_in(run.clone()) == 0 && extents.used_in(run) == 0
    }

    /// Closes pages if they are open and nobody owns one of them.
    pub(crate) fn close_if_free(&self, run: Range<usize>) -> bool {
        let mut extents = self.lock();
        let free = extents.closed_in(run.clone()) == 0 && extents.used_in(run.clone()) == 0;
        if free {
            extents.close(run);
            self.note_size(&extents);
        }
        free
    }

    /// Gives back the page that `take_header` took.
    pub(crate) fn give_header_back(&self, page: usize) {
        self.give_back(page..page + 1, Purpose::Metadata);
    }

    /// Bytes of `run` that somebody owns.
    pub(crate) fn used_bytes_in(&self, run: Range<usize>) -> u64 {
        (self.lock().used_in(run) * PAGE_BYTES) as u64
    }

    /// Gives closed pages that nobody owns back to the system, and forgets about them.
    /// False when what was there stays there.
    pub(crate) fn give_up(&self, run: Range<usize>) -> bool {
        let released = self.window.release(bytes_of(&run)).unwrap_or_else(|error| {
            tracing::warn!(tablespace = self.name(), %error, "memory was not given back");
            false
        });
        let mut extents = self.lock();
        extents.set_touched(run, false);
        self.note_free(&extents);
        released
    }

    pub(crate) fn cut(&self, end: usize) {
        self.lock().cut(end);
    }

    /// Whether these bytes, which lie in the tablespace, are to be moved so that it can shrink.
    pub fn is_closing(&self, bytes: &[u8]) -> bool {
        self.is_run_closing(bytes.as_ptr().addr(), bytes.len())
    }

    /// As `is_closing`, of a page at an address that may be another tablespace's.
    pub fn is_page_closing(&self, address: usize) -> bool {
        self.is_run_closing(address, PAGE_BYTES)
    }

    pub(crate) fn is_run_closing(&self, address: usize, len: usize) -> bool {
        if len == 0 || !self.is_shrinking.load(Ordering::Acquire) {
            return false;
        }
        let start = address.wrapping_sub(self.window.base().as_ptr().addr());
        if start >= self.window.len() {
            return false;
        }
        let end = (start + len).min(self.window.len());
        if let Some(leased) = &self.leased {
            return self.is_lease_closing(leased, &(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES)));
        }
        self.lock().closed_in(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES)) > 0
    }

    /// Refuses all further allocations, if nothing is held but headers. Otherwise the purposes that hold something.
    pub(crate) fn close(&self) -> Result<(), Vec<LedgerRow>> {
        let holds = |purpose, bytes| bytes > 0 && !matches!(purpose, Purpose::Free | Purpose::Metadata);
        {
            // Nothing is allocated under these: the global allocator may be about to take them.
            let _extents = self.lock();
            let leased = self.leased.as_deref();
            let lock_of = |class: Class| leased.and_then(|leased| leased.book(class)).map(lock_book);
            let _books = [Class::Delta, Class::Index, Class::Main].map(lock_of);
            if !Purpose::ALL.into_iter().any(|purpose| holds(purpose, self.ledger.bytes(purpose))) {
                self.closed.store(true, Ordering::Relaxed);
            }
        }
        if self.is_closed() {
            *self.lock_kept() = Kept::default();
            return Ok(());
        }
        Err(self.ledger().into_iter().filter(|row| holds(row.purpose, row.bytes)).collect())
    }

    fn address_of(&self, page: usize) -> NonNull<u8> {
        debug_assert!(page * PAGE_BYTES < self.window.len());
        // SAFETY: a page of this mapping.
        unsafe { self.window.base().add(page * PAGE_BYTES) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Extents> {
        lock_book(&self.extents)
    }

    /// The book of pages for a purpose.
    fn lock_book_of(&self, purpose: Purpose) -> MutexGuard<'_, Extents> {
        match &self.leased {
            None => self.lock(),
            Some(leased) => lock_book(leased.book(Class::of(purpose)).unwrap_or(&self.extents)),
        }
    }

    /// That of the heap's pages, of a tablespace over a pool; of others, of all pages.
    pub(crate) fn heap_book(&self) -> &Mutex<Extents> {
        &self.extents
    }

    pub(crate) fn owners(&self) -> &OwnerTable {
        &self.owners
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn is_shrinking(&self) -> bool {
        self.is_shrinking.load(Ordering::Acquire)
    }

    pub(crate) fn set_shrinking(&self, is_shrinking: bool) {
        self.is_shrinking.store(is_shrinking, Ordering::Release);
    }

    pub(crate) fn set_size_bytes(&self, bytes: u64) {
        self.size_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_free(&self, bytes: u64) {
        self.ledger.set(Purpose::Free, bytes);
    }

    /// Pages of main that another host wrote.
    pub(crate) fn add_attached(&self, bytes: u64) {
        self.ledger.add(Purpose::Main, bytes);
    }

    pub(crate) fn subtract(&self, purpose: Purpose, bytes: u64) {
        self.ledger.subtract(purpose, bytes);
    }
}

impl Drop for Tablespace {
    fn drop(&mut self) {
        if self.leased.is_some() {
            self.leave_siblings();
        }
        // Of what is not kept a file would hold memory for nobody.
        self.leave();
    }
}

fn lock_book(book: &Mutex<Extents>) -> MutexGuard<'_, Extents> {
    // Nothing under this lock panics: what contradicts the books ends the process.
    book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn lies_far(config: &TablespaceConfig, leased: Option<&Leased>) -> bool {
    leased.map_or_else(|| config.location.is_far(), Leased::is_far)
}

/// Byte offsets of pages.
pub(crate) fn bytes_of(run: &Range<usize>) -> Range<usize> {
    run.start * PAGE_BYTES..run.end * PAGE_BYTES
}
