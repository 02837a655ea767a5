//! Slices of pools on files: made, taken, given up and forgotten, by machines that are one.

use super::*;
use crate::check::{check, usage};
use crate::member::{JoinOptions, Member};
use crate::pool::CreateOptions;
use crate::show;
use crate::words::{Database, Generation, Host, Kind, Owner, Role};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

const EXTENT: u64 = 2 << 20;
const ONE: Machine = Machine(0);
const TWO: Machine = Machine(1);
const SLICE_ONE: Slice = Slice(0);
const SLICE_TWO: Slice = Slice(1);

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::Builder::new().prefix("tidepool-dealt-").tempdir().unwrap();
    let path = folder.path().join("pool");
    Place { _folder: folder, path }
}

impl Place {
    fn location(&self) -> Location {
        Location::File(self.path.clone())
    }

    fn options(&self, extents: u64) -> CreateOptions {
        CreateOptions {
            devices: vec![(self.location(), Some(extents * EXTENT))],
            extent_bytes: None,
            bytes_max: None,
            label: "test".to_owned(),
            populates: false,
            overcommits: false,
        }
    }

    /// Two slices of seven extents, one of which has the books.
    fn pool(&self) -> DealtPool {
        DealtPool::create(&self.options(15), 2).unwrap()
    }

    fn open(&self, machine: Machine, slice: Slice) -> Result<Arc<Pool>> {
        Pool::open_slice(&self.location(), machine, slice).map(Arc::new)
    }

    fn release(&self, machine: Machine, slice: Slice) -> Result<()> {
        DealtPool::release(&self.location(), machine, slice)
    }
}

fn join(pool: &Arc<Pool>) -> Member {
    if pool.databases().unwrap().is_empty() {
        let tool = Member::join(Arc::clone(pool), &JoinOptions::tool("tool")).unwrap();
        tool.create_database("a", 0).unwrap();
    }
    let options = JoinOptions { role: Role::Primary, database: Some("a".to_owned()), ..JoinOptions::tool("host") };
    Member::join(Arc::clone(pool), &options).unwrap()
}

#[allow(unsafe_code, reason = "the test's own extents")]
fn fill(pool: &Pool, extent: Extent, byte: u8) {
    let (base, len) = pool.extent(extent).unwrap();
    // SAFETY: mapped as long as the pool is open, and the test's own.
    unsafe { base.as_ptr().write_bytes(byte, len) };
}

fn shared(pool: &Pool) -> u64 {
    usage(pool).unwrap().iter().filter(|((state, ..), _)| *state == "shared").map(|(_, count)| *count).sum()
}

#[test]
fn each_machine_works_in_a_slice_of_its_own() {
    let place = place();
    let dealt = place.pool();
    assert_eq!((dealt.machines(), dealt.slice_bytes()), (2, 7 * EXTENT));
    assert!(dealt.slices().unwrap().iter().all(|view| view.holder.is_none()));
    let (one, two) = (place.open(ONE, SLICE_ONE).unwrap(), place.open(TWO, SLICE_TWO).unwrap());
    assert_ne!(one.superblock().identity, two.superblock().identity);
    let members = [join(&one), join(&two)];
    assert_eq!(members[0].host(), members[1].host(), "the books know nothing of each other");
    for (member, byte) in members.iter().zip([1, 2]) {
        // All that there is of the slice, and nothing of the other's.
        let extents = member.lease(Kind::Main, 6).unwrap();
        assert_eq!(member.lease(Kind::Heap, 1).unwrap_err().code(), SqlState::DISK_FULL);
        extents.iter().for_each(|extent| fill(member.pool(), *extent, byte));
        extents.iter().for_each(|extent| member.publish(*extent, Generation(0)).unwrap());
    }
    let bytes = std::fs::read(&place.path).unwrap();
    let count = |byte: u8| bytes.chunks(EXTENT as usize).filter(|extent| extent.iter().all(|at| *at == byte)).count();
    assert_eq!((count(1), count(2)), (6, 6));
    for pool in [&one, &two] {
        let report = check(pool, true).unwrap();
        assert!(report.is_clean() && report.compared == 6, "{report:?}");
    }
    assert!(dealt.faults().unwrap().is_empty());
    let text = show::slices(&dealt).unwrap();
    assert!(text.contains("dealt out to 2 hosts") && text.contains("held   host 2"), "{text}");
    let read = Pool::open_slice_to_read(&place.location(), SLICE_TWO).unwrap();
    assert!(show::list(&read).unwrap().contains("slice 2 of 2"));
    assert!(check(&read, true).unwrap().is_clean());
}

#[test]
fn a_slice_goes_from_machine_to_machine_when_it_is_given_up() {
    let place = place();
    let dealt = place.pool();
    let pool = place.open(ONE, SLICE_ONE).unwrap();
    let member = join(&pool);
    let extent = member.lease(Kind::Main, 1).unwrap()[0];
    fill(&pool, extent, 7);
    member.publish(extent, Generation(0)).unwrap();
    let refused = place.open(TWO, SLICE_ONE).unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_IN_USE);
    assert!(refused.message().contains("held by host 1"), "{refused:?}");
    assert_eq!(place.release(TWO, SLICE_ONE).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    // The watcher of that call has the pool open anew, and so sees the lock of this process's host.
    assert_eq!(place.release(ONE, SLICE_ONE).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    assert_eq!(
        DealtPool::open(&place.location(), Protection::ReadWrite).unwrap().destroy(false).unwrap_err().code(),
        SqlState::OBJECT_IN_USE
    );
    member.leave().unwrap();
    drop(pool);
    // Its machine keeps it when its processes end.
    assert_eq!(place.open(TWO, SLICE_ONE).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    drop(place.open(ONE, SLICE_ONE).unwrap());
    place.release(ONE, SLICE_ONE).unwrap();
    assert!(dealt.slices().unwrap().iter().all(|view| view.holder.is_none()));
    let pool = place.open(TWO, SLICE_ONE).unwrap();
    assert_eq!(shared(&pool), 1);
    assert!(check(&pool, true).unwrap().is_clean());
    assert_eq!(place.open(ONE, SLICE_ONE).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    assert!(pool.slice().unwrap().is_held().unwrap());
    let member = join(&pool);
    assert_eq!(member.database(), Database(0));
}

#[test]
fn what_a_machine_left_that_is_dead_is_free_for_the_next() {
    let place = place();
    let dealt = place.pool();
    let pool = place.open(ONE, SLICE_ONE).unwrap();
    let member = join(&pool);
    let leased = member.lease(Kind::Heap, 3).unwrap();
    assert_eq!(leased.len(), 3);
    let held = dealt.note_over(SLICE_ONE, TWO, false).unwrap_err();
    assert!(held.message().contains("this machine, which is alive"), "{held:?}");
    assert_eq!(dealt.note_over(SLICE_TWO, TWO, false).unwrap(), None, "nobody has it");
    assert_eq!(dealt.note_over(SLICE_ONE, TWO, true).unwrap(), Some(ONE));
    assert!(!pool.slice().unwrap().is_held().unwrap(), "it finds out");
    let next = place.open(TWO, SLICE_ONE).unwrap();
    assert!(next.hosts().unwrap().is_empty(), "those of the machine before are buried");
    assert_eq!(next.free_extents().unwrap(), 6);
    assert!(!member.is_current().unwrap());
    drop(next);
    place.release(TWO, SLICE_ONE).unwrap();
    // What was said was about one tenure.
    let again = place.open(ONE, SLICE_ONE).unwrap();
    assert!(again.slice().unwrap().is_held().unwrap() && !pool.slice().unwrap().is_held().unwrap());
}

#[test]
fn what_does_not_work_there_is_said() {
    let place = place();
    let code = |error: Error| error.code();
    assert_eq!(code(DealtPool::create(&place.options(15), 17).unwrap_err()), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(code(DealtPool::create(&place.options(4), 2).unwrap_err()), SqlState::DISK_FULL);
    assert!(!place.path.exists(), "a file that was made in vain is removed");
    let several = CreateOptions {
        devices: vec![(place.location(), Some(30 * EXTENT)), (place.location(), Some(30 * EXTENT))],
        ..place.options(15)
    };
    assert_eq!(code(DealtPool::create(&several, 2).unwrap_err()), SqlState::FEATURE_NOT_SUPPORTED);
    let dealt = place.pool();
    assert_eq!(code(DealtPool::create(&place.options(15), 2).unwrap_err()), SqlState::DUPLICATE_OBJECT);
    let error = Pool::open(&place.location()).unwrap_err();
    assert!(error.message().contains("is dealt out to 2 hosts") && error.hint().is_some(), "{error:?}");
    assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(code(Pool::give_up_damaged(&place.location()).unwrap_err()), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(code(place.open(Machine(2), SLICE_ONE).unwrap_err()), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(code(place.open(ONE, Slice(2)).unwrap_err()), SqlState::INVALID_PARAMETER_VALUE);
    let pool = place.open(ONE, SLICE_ONE).unwrap();
    let second = Location::File(place.path.with_extension("second"));
    assert_eq!(code(pool.add_device(&second, Some(8 * EXTENT)).unwrap_err()), SqlState::FEATURE_NOT_SUPPORTED);
    drop(pool);
    place.release(ONE, SLICE_ONE).unwrap();
    let location = dealt.destroy(false).unwrap();
    assert_eq!(location, place.location());
    assert!(Pool::open(&location).unwrap_err().message().contains("there is no pool in"));
    // A pool whose hosts see each other has no slices.
    std::fs::remove_file(&place.path).unwrap();
    drop(Pool::create(&place.options(8)).unwrap());
    assert_eq!(code(place.open(ONE, SLICE_ONE).unwrap_err()), SqlState::INVALID_PARAMETER_VALUE);
    assert!(DealtPool::find(&place.location(), Protection::Read).unwrap().is_none());
}

#[test]
fn damage_between_slices_is_found() {
    let place = place();
    let dealt = place.pool();
    drop(place.open(TWO, SLICE_TWO).unwrap());
    assert!(dealt.faults().unwrap().is_empty());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&place.path).unwrap();
    let holds = [crate::dealt::hold_at(SLICE_TWO, TWO), crate::dealt::told_at(SLICE_ONE, TWO, ONE)];
    // Words, and a byte of nothing between them.
    let places = holds.map(|at| u64::from(at.0)).into_iter().chain([4096 + 40, 3 * 4096, 100]);
    for at in places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        assert_eq!(dealt.faults().unwrap().len(), 1, "byte {at}: {:?}", dealt.faults());
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(dealt.faults().unwrap().is_empty());
    let at = u64::from(crate::dealt::hold_at(SLICE_TWO, TWO).0);
    file.write_all_at(&[0; 8], at).unwrap();
    assert_eq!(place.open(ONE, SLICE_TWO).unwrap_err().code(), SqlState::DATA_CORRUPTED);
}

#[test]
fn owners_of_a_slice_name_its_own_hosts() {
    let place = place();
    place.pool();
    let pool = place.open(TWO, SLICE_ONE).unwrap();
    let member = join(&pool);
    let extent = member.lease(Kind::Heap, 1).unwrap()[0];
    let owner = pool.told(pool.books().load(pool.layout().owner(extent))).unwrap();
    let Owner::Private { by, .. } = owner else { panic!("{owner:?}") };
    assert_eq!(by, Host { slot: member.host().slot, incarnation: member.host().incarnation });
}
