//! A database in a slice of a pool that is dealt out: one machine's, until it gives the slice up.

use super::tests::{config_at, create};
use super::*;
use crate::config::ConfigBuilder;
use crate::tests::{insert_and_commit, rows};
use tidepool_device::{Location, Protection};
use tidepool_pool::check::check;
use tidepool_pool::dealt::{Machine, Slice};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::slices::DealtPool;

struct Place(tempfile::TempDir);

impl Place {
    /// Two slices of 64 MB, about.
    fn new() -> Place {
        let shm = std::path::Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let place = Place(tempfile::Builder::new().prefix("tidepool-dealt-").tempdir_in(parent).unwrap());
        let options = CreateOptions {
            devices: vec![(place.location(), Some(130 << 20))],
            extent_bytes: None,
            bytes_max: None,
            label: String::new(),
            populates: false,
            overcommits: false,
        };
        DealtPool::create(&options, 2).unwrap();
        place
    }

    fn location(&self) -> Location {
        Location::File(self.0.path().join("pool"))
    }

    fn try_open(&self, name: &str, machine: u8, slice: u8, role: PoolRole) -> Result<Arc<Database>> {
        let mut config = config_at(self.location(), name, role, Duration::from_secs(30));
        if let Some(pool) = &mut config.pool {
            pool.machine = Some((machine, slice));
        }
        Database::open(config)
    }

    fn open(&self, name: &str, machine: u8, slice: u8) -> Arc<Database> {
        self.try_open(name, machine, slice, PoolRole::Auto).unwrap()
    }

    fn checked(&self) {
        let dealt = DealtPool::open(&self.location(), Protection::Read).unwrap();
        assert!(dealt.faults().unwrap().is_empty());
        for slice in [Slice(0), Slice(1)] {
            let report = check(&Pool::open_slice_to_read(&self.location(), slice).unwrap(), true).unwrap();
            assert!(report.is_clean(), "{:?}", report.faults);
        }
    }
}

#[test]
fn each_machine_has_a_database_of_its_own_and_hands_it_over_cold() {
    let place = Place::new();
    let (one, two) = (place.open("one", 1, 1), place.open("two", 2, 2));
    assert_eq!((one.role(), two.role()), (HostRole::Primary, HostRole::Primary), "both, of the same name");
    create(&one, "t");
    insert_and_commit(&one, "t", 0..2000);
    assert!(one.merge("t").unwrap() > 0);
    insert_and_commit(&one, "t", 5000..5010);
    let expected = rows(&one, "t");
    create(&two, "u");
    insert_and_commit(&two, "u", 0..5);
    // Another process of the machine is refused as long as there is a primary, and follows nothing.
    assert_eq!(place.try_open("again", 1, 1, PoolRole::Auto).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    let refused = place.try_open("other", 2, 1, PoolRole::Primary).unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_IN_USE);
    assert!(refused.message().contains("held by host 1"), "{refused:?}");
    assert_eq!(
        DealtPool::release(&place.location(), Machine(0), Slice(0)).unwrap_err().code(),
        SqlState::OBJECT_IN_USE
    );
    // A restart on the same machine.
    one.close().unwrap();
    drop(one);
    let one = place.open("later", 1, 1);
    assert_eq!(rows(&one, "t"), expected);
    insert_and_commit(&one, "t", 6000..6010);
    let expected = rows(&one, "t");
    one.close().unwrap();
    drop(one);
    // The slice goes to the other machine, which has its own as well.
    DealtPool::release(&place.location(), Machine(0), Slice(0)).unwrap();
    let moved = place.open("moved", 2, 1);
    assert_eq!(rows(&moved, "t"), expected);
    insert_and_commit(&moved, "t", 7000..7010);
    assert_eq!(rows(&two, "u").len(), 5);
    assert_eq!(place.try_open("one", 1, 1, PoolRole::Primary).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    moved.close().unwrap();
    two.close().unwrap();
    drop((moved, two));
    place.checked();
}

#[test]
fn a_standby_is_refused_where_it_would_see_nothing() {
    let place = Place::new();
    let Location::File(path) = place.location() else { panic!("a pool in a file") };
    let text = format!("[pool]\nlocation = \"file:{}\"\nmachine = 1\nrole = \"standby\"\n", path.display());
    let refused = ConfigBuilder::new().toml(&text, "tidepool.toml").and_then(|builder| builder.build()).unwrap_err();
    assert_eq!(refused.code(), SqlState::FEATURE_NOT_SUPPORTED);
    assert!(refused.hint().is_some_and(|hint| hint.contains("tidepool pool release")), "{refused:?}");
    let config = config_at(place.location(), "h", PoolRole::Primary, Duration::from_secs(30));
    let error = Database::open(config).unwrap_err();
    assert!(error.message().contains("is dealt out to 2 hosts"), "{error:?}");
}

#[test]
fn a_folder_never_fills_a_pool_over_others_slices() {
    let place = Place::new();
    let two = place.open("two", 2, 2);
    create(&two, "u");
    insert_and_commit(&two, "u", 0..5);
    let open = |machine: Option<(u8, u8)>| {
        let mut config = config_at(place.location(), "one", PoolRole::Primary, Duration::from_secs(30));
        config.data_dir = Some(place.0.path().join("data"));
        if let Some(pool) = &mut config.pool {
            pool.machine = machine;
        }
        Database::open(config)
    };
    let one = open(Some((1, 1))).unwrap();
    create(&one, "t");
    insert_and_commit(&one, "t", 0..10);
    one.checkpoint().unwrap();
    one.close().unwrap();
    drop(one);
    // Started without saying which machine it is.
    assert_eq!(open(None).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    // Its own slice is damaged.
    let slice = Pool::open_slice_to_read(&place.location(), Slice(0)).unwrap();
    let (_, base) = slice.place(Extent(0)).unwrap();
    drop(slice);
    let Location::File(path) = place.location() else { panic!("a pool in a file") };
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5; 4096], base as u64).unwrap();
    open(Some((1, 1))).unwrap_err();
    assert_eq!(rows(&two, "u").len(), 5);
    insert_and_commit(&two, "u", 5..6);
    two.close().unwrap();
}
