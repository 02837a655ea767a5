//! The tables that the CH-benCHmark has beside TPC-C's: suppliers, nations and regions.

use tidepool_embedded::{Decimal, Isolation, MergePolicy, Result, SqlType, TableBuilder, Tidepool};

/// As the queries have it: `mod(s_w_id * s_i_id, 10000)`.
const SUPPLIERS: i32 = 10_000;

const REGIONS: [&str; 5] = ["Africa", "America", "Asia", "Australia", "Europe"];

/// Name and region, by key: the characters that the state of a customer may begin with.
const NATIONS: [(&str, i32); 62] = [
    // 0 to 9
    ("Australia", 4),
    ("Belgium", 5),
    ("Cameroon", 1),
    ("Denmark", 5),
    ("Ecuador", 2),
    ("France", 5),
    ("Germany", 5),
    ("Hungary", 5),
    ("Italy", 5),
    ("Japan", 3),
    // A to Z
    ("Kenya", 1),
    ("Lithuania", 5),
    ("Mexico", 2),
    ("Netherlands", 5),
    ("Oman", 1),
    ("Portugal", 5),
    ("Qatar", 1),
    ("Rwanda", 1),
    ("Serbia", 5),
    ("Togo", 1),
    ("United States", 2),
    ("Vietnam", 3),
    ("Singapore", 3),
    ("Cambodia", 3),
    ("Yemen", 1),
    ("Zimbabwe", 1),
    ("Argentina", 2),
    ("Bolivia", 2),
    ("Canada", 2),
    ("Dominican Republic", 2),
    ("Egypt", 1),
    ("Finland", 5),
    ("Ghana", 1),
    ("Haiti", 2),
    ("India", 3),
    ("Jamaica", 4),
    // a to z
    ("Kazakhstan", 3),
    ("Luxembourg", 5),
    ("Morocco", 1),
    ("Norway", 5),
    ("Poland", 5),
    ("Peru", 2),
    ("Nicaragua", 2),
    ("Romania", 5),
    ("South Africa", 1),
    ("Thailand", 3),
    ("United Kingdom", 5),
    ("Venezuela", 2),
    ("Liechtenstein", 5),
    ("Austria", 5),
    ("Laos", 3),
    ("Zambia", 1),
    ("Switzerland", 5),
    ("China", 3),
    ("Papua New Guinea", 4),
    ("East Timor", 4),
    ("Bulgaria", 5),
    ("Brazil", 2),
    ("Albania", 5),
    ("Andorra", 5),
    ("Belize", 2),
    ("Botswana", 1),
];

/// The key of the nation at a place of the list.
fn nation_key(place: usize) -> i32 {
    let (digits, letters) = (10, 26);
    let code = match place {
        place if place < digits => b'0' as usize + place,
        place if place < digits + letters => b'A' as usize + place - digits,
        place => b'a' as usize + place - digits - letters,
    };
    code as i32
}

/// Letters and digits, by xorshift64*.
struct Random(u64);

impl Random {
    fn within(&mut self, first: u64, last: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        first + self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % (last - first + 1)
    }

    fn text(&mut self, least: u64, most: u64) -> String {
        const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        (0..self.within(least, most)).map(|_| char::from(LETTERS[self.within(0, 61) as usize])).collect()
    }

    fn digits(&mut self, length: u64) -> String {
        (0..length).map(|_| char::from(b'0' + self.within(0, 9) as u8)).collect()
    }
}

/// Makes the three tables and fills them.
pub(super) fn load(tidepool: &Tidepool) -> Result<()> {
    const ID: SqlType = SqlType::Integer;
    let text = |length| SqlType::Varchar { length_max: Some(length) };
    let table = |name: &str| TableBuilder::new(name).merge_policy(MergePolicy::Auto);
    table("region")
        .column("r_regionkey", ID)
        .column("r_name", text(55))
        .column("r_comment", text(152))
        .primary_key(["r_regionkey"])
        .create(tidepool)?;
    table("nation")
        .column("n_nationkey", ID)
        .column("n_name", text(25))
        .column("n_regionkey", ID)
        .column("n_comment", text(152))
        .primary_key(["n_nationkey"])
        .create(tidepool)?;
    table("supplier")
        .column("su_suppkey", ID)
        .column("su_name", text(25))
        .column("su_address", text(40))
        .column("su_nationkey", ID)
        .column("su_phone", text(15))
        .column("su_acctbal", SqlType::Numeric { precision: 12, scale: 2 })
        .column("su_comment", text(101))
        .primary_key(["su_suppkey"])
        .create(tidepool)?;
    let (region, nation) = (tidepool.table("region")?, tidepool.table("nation")?);
    let supplier = tidepool.table("supplier")?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut session = tidepool.session()?;
    // What is drawn again when a transaction is tried again is as good.
    session.run(Isolation::RepeatableRead, |access| {
        for (place, name) in REGIONS.into_iter().enumerate() {
            access.insert(&region, (place as i32 + 1, name, random.text(31, 152)))?;
        }
        for (place, (name, region)) in NATIONS.into_iter().enumerate() {
            access.insert(&nation, (nation_key(place), name, region, random.text(31, 152)))?;
        }
        for key in 0..SUPPLIERS {
            let nation = nation_key(random.within(0, NATIONS.len() as u64 - 1) as usize);
            let balance = Decimal(random.within(0, 999_999_999) as i64);
            let (name, address, phone) = (random.text(25, 25), random.text(20, 40), random.digits(15));
            access.insert(&supplier, (key, name, address, nation, phone, balance, random.text(51, 101)))?;
        }
        Ok(())
    })
}
