//! Transfers between accounts from two threads, and a procedure for SQL: `cargo run --release -p tidepool-embedded --example
//! accounts -- [FOLDER]`. With a folder, what was committed is there when it is run again.

use std::time::Instant;
use tidepool_embedded::{
    Access, Decimal, Direction, Error, Isolation, KeyValue, Result, ScanRange, SqlState, SqlType, TableBuilder,
    Tidepool,
};

const ACCOUNTS: i64 = 1000;
const TRANSFERS: i64 = 20_000;

fn main() -> Result<()> {
    let tidepool = match std::env::args().nth(1) {
        Some(folder) => Tidepool::open_folder(folder)?,
        None => Tidepool::in_memory()?,
    };
    let made = TableBuilder::new("accounts")
        .column("id", SqlType::BigInt)
        .column("owner", SqlType::Varchar { length_max: Some(40) })
        .column("balance", SqlType::Numeric { precision: 15, scale: 2 })
        .nullable("note", SqlType::Text)
        .primary_key(["id"])
        .index("accounts_by_owner", ["owner", "id"])
        .create(&tidepool);
    let is_new = match made {
        Err(error) if error.code() == SqlState::DUPLICATE_TABLE => false,
        made => made.map(|()| true)?,
    };

    // Looked up once, used by all threads.
    let accounts = tidepool.table("accounts")?;
    let (by_id, by_owner) = (accounts.primary_key()?, accounts.index("accounts_by_owner")?);
    let (id, balance) = (accounts.column::<i64>("id")?, accounts.column::<Decimal>("balance")?);

    let mut session = tidepool.session()?;
    if is_new {
        session.run(Isolation::RepeatableRead, |access| {
            (0..ACCOUNTS).try_for_each(|id| {
                let owner = format!("owner {}", id % 10);
                access.insert(&accounts, (id, owner, Decimal(10_000), None::<&str>)).map(drop)
            })
        })?;
    }

    let transfer = |access: Access<'_>, from: i64, to: i64, amount: i64| -> Result<()> {
        for (account, change) in [(from, -amount), (to, amount)] {
            let row = access
                .get(&by_id, (account,))?
                .ok_or_else(|| Error::new(SqlState::CHECK_VIOLATION, format!("there is no account {account}")))?;
            access.update(&accounts, row.id(), |row| row.set(balance, &Decimal(row.old(balance).0 + change)))?;
        }
        Ok(())
    };

    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let (tidepool, transfer) = (&tidepool, &transfer);
                scope.spawn(move || -> Result<()> {
                    let mut session = tidepool.session()?;
                    // Waits for the log once, at the end, and not at each commit.
                    session.set_synchronous(false);
                    for number in 0..TRANSFERS {
                        let (from, to) = ((number * 7 + thread) % ACCOUNTS, (number * 13 + 5) % ACCOUNTS);
                        session.run(Isolation::Serializable, |access| transfer(access, from, to, 25))?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread"))
    })?;
    tidepool.database().flush_log()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{:.0} transfers a second", 2.0 * TRANSFERS as f64 / seconds);

    let (sum, last) = session.run(Isolation::RepeatableRead, |access| {
        let mut sum = 0;
        for row in access.scan(&by_id, ScanRange::all(), Direction::Forward)? {
            sum += row?.get(balance).0;
        }
        let mut of_owner = access.scan(&by_owner, ScanRange::prefix(("owner 3",)), Direction::Backward)?;
        Ok((sum, of_owner.next().transpose()?.map(|row| row.get(id))))
    })?;
    println!("balances add up to {}.{:02}; the last account of owner 3 is {last:?}", sum / 100, sum % 100);

    // For SQL, where the database is served: CALL deposit(17, 12.50).
    let (table, way) = (accounts.clone(), by_id.clone());
    let arguments = [("account", SqlType::BigInt), ("amount", SqlType::Numeric { precision: 15, scale: 2 })];
    tidepool.procedure("deposit", &arguments, move |access, arguments| {
        let [KeyValue::BigInt(account), KeyValue::Numeric(amount)] = arguments else {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "deposit takes no nulls"));
        };
        let row = access
            .get(&way, (*account,))?
            .ok_or_else(|| Error::new(SqlState::CHECK_VIOLATION, format!("there is no account {account}")))?;
        let amount = *amount as i64;
        access.update(&table, row.id(), |row| row.set(balance, &Decimal(row.old(balance).0 + amount))).map(drop)
    })
}
