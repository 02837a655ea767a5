//! What a file, the environment and flags come to.

use super::*;
use std::path::Path;

#[test]
fn the_documented_file_is_read() {
    let documented: String = include_str!("../config.rs")
        .lines()
        .skip_while(|line| *line != "//! ```toml")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .map(|line| format!("{}\n", line.trim_start_matches("//!")))
        .collect();
    let config = Config::from_toml(&documented).unwrap();
    assert_eq!(config.data_dir.as_deref(), Some(Path::new("tidepool-data")));
    assert_eq!((config.memory_limit_bytes, config.client_memory_bytes), (16 << 30, 1 << 30));
    assert_eq!(config.near.size_bytes, Some(8 << 30));
    assert_eq!(config.near.location, Location::Anon);
    assert_eq!(config.far.location, Location::Numa(1));
    assert_eq!(config.far.profile.as_ref().map(|profile| profile.name.as_str()), Some("fpga-prototype"));
    let paged = &config.tablespaces[1];
    assert_eq!((paged.location.to_string().as_str(), paged.size_bytes), ("paged:256MB:anon:", Some(4 << 30)));
    assert_eq!(config.tablespaces[0].name, "pmem");
    assert_eq!(config.tablespaces[0].size_bytes, None);
    assert_eq!(config.last_level_cache_bytes, Some(32 << 20));
    assert_eq!(config.local_profile, Some(Profile::preset("local-dram").unwrap()));
    let error = Config::from_toml("[memory]\nlocal_profile = \"nowhere\"").unwrap_err();
    assert_eq!(error.code(), SqlState::CONFIG_FILE_ERROR);
    assert!(error.message().contains("memory.local_profile"), "{error:?}");
    let uniform = config.tablespaces.iter().find(|space| space.name == "uniform").unwrap();
    assert_eq!(uniform.location.to_string(), "numa:0*3, numa:1*1");
    assert_eq!(uniform.profile_names().as_deref(), Some("none+cxl-asic"));
    let profile = config.profile("my-expander").unwrap();
    assert_eq!((profile.read_gb_per_s, profile.write_gb_per_s), (20.0, 12.0));
    let mixes: Vec<_> = profile.mixed_gb_per_s.iter().map(|mix| (mix.to_string(), mix.gb_per_s)).collect();
    assert_eq!(mixes, [("2:1".to_owned(), 25.0), ("1:1".to_owned(), 24.0)]);
    let pool = PoolSettings {
        name: Some("h1".to_owned()),
        database: "orders".to_owned(),
        ..PoolSettings::new(Location::File("/mnt/pool".into()))
    };
    assert_eq!(config.pool, Some(pool));
    assert_eq!(config.temp_tablespaces, ["near", "far"]);
    assert_eq!(config.statement_memory_bytes, Some(2 << 30));
    let server = &config.server;
    assert_eq!((config.threads, server.connections_max, server.superuser_reserved_connections), (8, 250, 5));
    let transactions = ClassConfig {
        running_max: Some(64),
        queued_max: Some(1000),
        queue_timeout: Some(Duration::from_secs(10)),
        cores: Vec::new(),
    };
    let analytics = ClassConfig { running_max: Some(4), cores: vec![1, 3, 4, 5], ..ClassConfig::default() };
    assert_eq!(config.workload, WorkloadConfig { transactions, analytics });
}

#[test]
fn profiles_are_written_as_they_are_read() {
    for preset in Profile::presets() {
        let odd = Profile { name: format!("a \"{}\"\n\\", preset.name), link: Some("pool".to_owned()), ..preset };
        let config = Config::from_toml(&format!("data = \"d\"\n\n{}", profile_toml(&odd))).unwrap();
        assert_eq!(config.profiles, [odd]);
    }
}

#[test]
fn the_empty_file_gives_the_defaults() {
    let config = Config::from_toml("").unwrap();
    assert_eq!(config.server.listen, "127.0.0.1:5477");
    assert!(config.near.size_bytes > config.far.size_bytes);
    assert!(config.data_dir.is_none() && config.near.profile.is_none());
}

#[test]
fn nonsense_is_refused_with_line_and_key() {
    for (text, place) in [
        ("[memory]\nlimit = \"1MB\"\n", "memory.limit must be at least 64 MB"),
        ("[memory]\nclients = \"1MB\"\n", "memory.clients must be at least 8 MB"),
        ("[memory.near]\nsize = \"12XB\"\n", "line 2, key \"memory.near.size\""),
        ("[memory.far]\nlocation = \"moon:1\"\n", "line 2, key \"memory.far.location\""),
        ("[server]\nlisten = 5\n", "line 2, key \"server.listen\""),
        ("[server]\n\ncolour = \"red\"\n", "line 3, key \"server.colour\""),
        ("[settings]\nthreads = -1\n", "line 2, key \"settings.threads\""),
        ("[settings]\nthreads = 0\n", "threads must be"),
        ("[workload.analytics]\nrunning_max = 0\n", "workload.analytics.running_max must be at least 1"),
        ("[workload.analytics]\nqueued_max = 2000000\n", "no count may be above"),
        ("[workload.analytics]\ncores = \"3-1\"\n", "no list of processors"),
        ("[workload.transactions]\nqueue_timeout = \"soon\"\n", "is not a time"),
        ("[workload.dashboards]\n", "key \"workload"),
        ("[pool]\nname = \"h1\"\n", "need pool.location"),
        ("[pool]\nlocation = \"anon:\"\n", "must be file:PATH or dax:PATH"),
        ("[pool]\nrole = \"auto\"\n", "needs pool.location"),
        ("[pool]\nlocation = \"file:/p\"\nrole = \"boss\"\n", "is no role"),
        ("[pool]\nlocation = \"file:/p\"\nslice = 1\n", "needs pool.machine"),
        ("[pool]\nlocation = \"file:/p\"\nmachine = 0\n", "count from 1"),
        ("[pool]\nlocation = \"file:/p\"\nhost_timeout = \"1ms\"\n", "at least 50ms"),
        ("[pool]\nlocation = \"file:/p\"\non_fenced = \"sulk\"\n", "neither exit nor rejoin"),
        (
            "data = \"d\"\n[log]\ntablespace = \"near\"\n[pool]\nlocation = \"file:/p\"\nrole = \"auto\"\n",
            "log.tablespace beside pool.role",
        ),
        ("[memory.far]\nlocation = \"pool:\"\n", "pool.location names none"),
        ("nonsense", "line 1"),
        ("[memory.near]\nprofile = \"no such\"\n", "tablespace \"near\""),
        ("[server]\ntls_key = \"x\"\n", "tls_certificate and tls_key"),
        ("[[tablespace]]\nname = \"near\"\nlocation = \"anon:\"\n", "declared twice"),
    ] {
        let error = Config::from_toml(text).unwrap_err();
        assert_eq!(error.code(), SqlState::CONFIG_FILE_ERROR, "{text}");
        assert!(error.message().contains(place), "{text:?}: {error}");
    }
}

#[test]
fn several_locations_are_written_in_three_ways() {
    let space =
        |text: &str| Config::from_toml(&format!("[memory.far]\nsize = \"1GB\"\n{text}\n")).map(|config| config.far);
    let expected = space("location = \"anon:*2, numa:1\"").unwrap();
    assert_eq!(expected.location.to_string(), "anon:*2, numa:1*1");
    assert_eq!(space("location = [\"anon:*2\", \"numa:1\"]").unwrap(), expected);
    let tables = "location = [{ location = \"anon:\", weight = 2 }, { location = \"numa:1\" }]";
    assert_eq!(space(tables).unwrap(), expected);
    // In a list a path may look like a weight or another location.
    let odd = space("location = [{ location = \"file:/a*2\" }, \"\\\"file:/b, anon:\\\"\"]").unwrap();
    assert_eq!(odd.location.to_string(), "\"file:/a*2\"*1, \"file:/b, anon:\"*1");
    let flags = ConfigBuilder::new().far("anon:*2,numa:1,size=1GB,profile=none+cxl-asic").unwrap().build().unwrap();
    assert_eq!((flags.far.location, flags.far.profiles.len()), (expected.location, 2));
    for (text, code) in [
        ("location = \"anon:*0, anon:\"", "weight"),
        ("location = \"anon:, anon:\"\nprofile = \"none+none+cxl-asic\"", "profile names 3 for 2 locations"),
        ("location = [{ location = \"anon:\", weight = 101 }, \"anon:\"]", "weight"),
    ] {
        let error = space(text).unwrap_err();
        assert_eq!(error.code(), SqlState::CONFIG_FILE_ERROR);
        assert!(error.message().contains(code), "{error}");
    }
}

#[test]
fn tablespaces_leave_room_in_the_limit() {
    let sizes = |text: &str| {
        let config = Config::from_toml(&format!("[memory]\nlimit = \"800MB\"\n{text}")).unwrap();
        let size = |space: &TablespaceConfig| space.size_bytes.unwrap_or(0) >> 20;
        (size(&config.near), size(&config.far), config.client_memory_bytes >> 20)
    };
    let (near, far, clients) = sizes("");
    assert!(near > far && near + far <= 800 - 256 && clients >= 128, "{near}, {far}, {clients}");
    // What is given for one leaves less to the other.
    assert_eq!(sizes("[memory.near]\nsize = \"500MB\"\n").0, 500);
    assert!(sizes("[memory.near]\nsize = \"500MB\"\n").1 <= 44);
    assert!(sizes("[memory.far]\nsize = \"500MB\"\n").0 <= 44);
    assert!(sizes("[[tablespace]]\nname = \"more\"\nlocation = \"anon:\"\nsize = \"500MB\"\n").0 <= 44);
    let environment = [("TIDEPOOL_MEMORY_LIMIT", "1GB"), ("TIDEPOOL_CLIENT_MEMORY", "50MB")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = ConfigBuilder::new().environment(environment).unwrap().build().unwrap();
    assert_eq!((config.memory_limit_bytes, config.client_memory_bytes), (1 << 30, 50 << 20));
}

#[test]
fn environment_goes_over_the_file_and_flags_over_both() {
    let file =
        ConfigBuilder::new().toml("data = \"a\"\n[memory.far]\nlocation = \"numa:1\"\nsize = \"1GB\"\n", "f").unwrap();
    let variables = [("TIDEPOOL_DATA", "b"), ("TIDEPOOL_NEAR", "3GB"), ("TIDEPOOL_LOG", "debug"), ("HOME", "/")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let builder = file.environment(variables).unwrap();
    let config = builder.clone().far("size=2GB").unwrap().build().unwrap();
    assert_eq!(config.data_dir.as_deref(), Some(Path::new("b")));
    assert_eq!(config.near.size_bytes, Some(3 << 30));
    assert_eq!((config.far.location, config.far.size_bytes), (Location::Numa(1), Some(2 << 30)));
    // Another device does not inherit the size.
    let config = builder.clone().far("file:/dev/shm/x").unwrap().build().unwrap();
    assert_eq!(config.far.size_bytes, None);
    let config = builder.clone().far("anon:,size=5GB,profile=fpga-prototype").unwrap().build().unwrap();
    assert_eq!((config.far.size_bytes, config.far.profile.is_some()), (Some(5 << 30), true));
    let config = builder.clone().far("paged:25%:numa:0,size=5GB,profile=infiniswap").unwrap().build().unwrap();
    assert_eq!((config.far.location.to_string().as_str(), config.far.size_bytes), ("paged:25%:numa:0", Some(5 << 30)));
    assert!(builder.clone().far("paged:64MB,size=5GB").is_err());
    assert!(builder.clone().far("anon:,speed=3").is_err());
    let class = [("TIDEPOOL_ANALYTICS".to_owned(), "running_max=2, cores=1+4-5,queue_timeout=0s".to_owned())];
    let config = builder.clone().environment(class).unwrap().build().unwrap();
    let analytics = ClassConfig {
        running_max: Some(2),
        queued_max: None,
        queue_timeout: Some(Duration::ZERO),
        cores: vec![1, 4, 5],
    };
    assert_eq!(config.workload, WorkloadConfig { analytics, ..WorkloadConfig::default() });
    let wrong = [("TIDEPOOL_ANALYTICS".to_owned(), "fast=yes".to_owned())];
    assert!(builder.clone().environment(wrong).unwrap_err().message().contains("unknown part"));
    let wrong = [("TIDEPOOL_THREADS".to_owned(), "many".to_owned())];
    let error = builder.environment(wrong).unwrap_err();
    assert_eq!(error.message(), "environment variable TIDEPOOL_THREADS: \"many\" is not a number");
}
