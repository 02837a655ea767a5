//! `CALL` of procedures that the program has registered.

use crate::server::{TestServer, code};
use std::sync::Arc;
use tidepool_base::{Error, SqlState, SqlType};
use tokio_postgres::Client;

use tidepool_database::Database;
use tidepool_embedded::{Access, Decimal, KeyValue, Result, Tidepool};

/// `deposit(account, amount)`; less than nothing is refused after it was written.
fn register(database: &Arc<Database>) {
    let tidepool = Tidepool::from(database.clone());
    let table = tidepool.table("account").unwrap();
    let (by_id, balance) = (table.primary_key().unwrap(), table.column::<Decimal>("balance").unwrap());
    let deposit = move |access: Access<'_>, arguments: &[KeyValue<'_>]| -> Result<()> {
        let [KeyValue::Integer(account), KeyValue::Numeric(amount)] = arguments else {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "no nulls"));
        };
        let Some(row) = access.get(&by_id, (*account,))? else {
            return Err(Error::new(SqlState::CHECK_VIOLATION, "there is no such account"));
        };
        let sum = row.get(balance).0 + *amount as i64;
        access.update(&table, row.id(), |row| row.set(balance, &Decimal(sum)))?;
        if sum < 0 { Err(Error::new(SqlState::CHECK_VIOLATION, "nothing is left")) } else { Ok(()) }
    };
    let arguments = [("account", SqlType::Integer), ("amount", SqlType::Numeric { precision: 12, scale: 2 })];
    tidepool.procedure("deposit", &arguments, deposit).unwrap();
}

async fn balance(client: &Client) -> String {
    client.query_one("SELECT balance::text FROM account WHERE id = 1", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_a_statement_of_its_transaction() {
    let (server, client) = TestServer::start_connected().await;
    let table =
        "CREATE TABLE account (id int PRIMARY KEY, balance numeric(12,2) NOT NULL); INSERT INTO account VALUES (1, 10)";
    client.batch_execute(table).await.unwrap();
    register(&server.database);
    client.batch_execute("CALL deposit(1, 2.5); CALL public.deposit(2 - 1, '0.25')").await.unwrap();
    assert_eq!(balance(&client).await, "12.75");
    client.execute("CALL deposit($1, 1)", &[&1i32]).await.unwrap();
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        client
            .batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; CALL deposit(1, 5); CALL deposit(1, 5)"))
            .await
            .unwrap();
        assert_eq!(balance(&client).await, "23.75");
        let other = server.connect().await;
        assert_eq!(balance(&other).await, "13.75");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    client.batch_execute("BEGIN; UPDATE account SET balance = 1; CALL deposit(1, 1); COMMIT").await.unwrap();
    assert_eq!(balance(&client).await, "2.00");
    let made = "BEGIN; CREATE TABLE beside (id int); CALL deposit(1, 1); ROLLBACK";
    client.batch_execute(made).await.unwrap();
    let refused = async |sql: &str| code(&client.batch_execute(sql).await.unwrap_err()).to_owned();
    assert_eq!(refused("CALL deposit(1, -3)").await, "23514");
    assert_eq!(balance(&client).await, "2.00");
    assert_eq!(refused("CALL deposit(1, NULL)").await, "22023");
    assert_eq!(refused("CALL deposit(1)").await, "42883");
    assert_eq!(refused("CALL withdraw(1, 1)").await, "42883");
    assert_eq!(refused("CALL deposit(1, 'much')").await, "22P02");
    assert_eq!(refused("BEGIN READ ONLY; CALL deposit(1, 1)").await, "25006");
    client.batch_execute("ROLLBACK").await.unwrap();
    let altered = "BEGIN; ALTER TABLE account ADD COLUMN note text; CALL deposit(1, 1)";
    assert_eq!(refused(altered).await, "0A000");
    client.batch_execute("ROLLBACK").await.unwrap();
    // Each by itself: what comes in one message is one transaction.
    client.batch_execute("ALTER TABLE account SET TABLESPACE far").await.unwrap();
    client.batch_execute("CALL deposit(1, 1)").await.unwrap();
    assert_eq!(balance(&client).await, "3.00");
}
