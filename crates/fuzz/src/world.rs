//! One small server for the targets that need one.

use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidepool_base::Result;
use tidepool_database::{Config, Database};
use tidepool_planner::{Planner, Session};
use tidepool_server::{Service, ServiceOptions};
use tokio::runtime::{Builder, Runtime};

/// A role that owns one schema and may neither read nor write files, so that no text that is made up harms the machine.
pub const ROLE: &str = "fuzz";

/// Statements of that role, which make what seeds read; run again whenever inputs may have changed it.
const SCHEMA: &str = "
    CREATE TABLE item (id integer PRIMARY KEY, name text, price numeric(10, 2), made timestamptz, flag boolean, note json);
    INSERT INTO item SELECT i, 'item ' || i, i * 1.25, timestamptz '2024-01-01 00:00+00' + i * interval '1 hour', i % 3 = 0, NULL
        FROM generate_series(1, 200) i;
    UPDATE item SET note = '{\"a\": [1, 2]}' WHERE id % 4 <> 0;
    CREATE INDEX item_name ON item (name, made DESC);
    CREATE TABLE part (item integer REFERENCES item, number integer, weight double precision, PRIMARY KEY (item, number));
    INSERT INTO part SELECT i, n, i * n / 7.0 FROM generate_series(1, 50) i, generate_series(1, 3) n;
    CREATE VIEW light AS SELECT * FROM part WHERE weight < 10;
    CREATE SEQUENCE counter;";

pub struct World {
    pub runtime: Runtime,
    pub service: Arc<Service>,
    planner: Arc<Planner>,
}

impl World {
    /// The one of this process.
    pub fn get() -> &'static World {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(|| World::new().unwrap_or_else(|error| panic!("no server to fuzz: {error}")))
    }

    fn new() -> Result<World> {
        let database = Database::open(Config::in_memory(512 << 20, 256 << 20))?;
        let planner = Planner::new(database)?;
        let options = ServiceOptions { authentication_timeout: Duration::from_secs(10), ..ServiceOptions::default() };
        let service = Arc::new(Service::new(planner.clone(), options));
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_stack_size(8 << 20)
            .enable_all()
            .build()
            .map_err(|error| tidepool_base::Error::io("start a runtime", &error))?;
        let world = World { runtime, service, planner };
        world.runtime.block_on(async {
            let mut owner = world.planner.session("tidepool");
            owner.query(&format!("CREATE ROLE {ROLE} LOGIN")).await?;
            Ok::<(), tidepool_base::Error>(())
        })?;
        world.reset();
        Ok(world)
    }

    /// The role's schema as it was in the beginning. Panics if that fails: what ran before left something behind.
    pub fn reset(&self) {
        self.runtime
            .block_on(async {
                let mut owner = self.planner.session("tidepool");
                owner.query(&format!("DROP SCHEMA IF EXISTS {ROLE} CASCADE")).await?;
                owner.query(&format!("CREATE SCHEMA {ROLE} AUTHORIZATION {ROLE}")).await?;
                let mut session = self.planner.session(ROLE);
                session.query(SCHEMA).await
            })
            .unwrap_or_else(|error| panic!("the server does not do any more what it did at first: {error}"));
    }

    /// A session of the role, whose statements end after a while.
    pub fn session(&self) -> Session {
        let mut session = self.planner.session(ROLE);
        for (name, value) in
            [("statement_timeout", "2s"), ("lock_timeout", "1s"), ("tidepool.statement_memory", "64MB")]
        {
            // A setting that is not there bounds nothing; the driver's own patience does.
            let _ = session.set(name, value);
        }
        session
    }
}
