//! Lines of lackey's trace: ` L 1ffefff7e0,8`, ` S …`, ` M …` (a load and a store), `I  …` for instructions.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub address: u64,
    pub size: u64,
    pub load: bool,
    pub store: bool,
}

/// `None` for instructions and for what is no access (valgrind's own messages, a line cut short).
pub fn parse_line(line: &[u8]) -> Option<Access> {
    let (load, store) = match line {
        [b' ', b'L', b' ', ..] => (true, false),
        [b' ', b'S', b' ', ..] => (false, true),
        [b' ', b'M', b' ', ..] => (true, true),
        _ => return None,
    };
    let mut address = 0u64;
    let mut at = 3;
    loop {
        let digit = match *line.get(at)? {
            byte @ b'0'..=b'9' => byte - b'0',
            byte @ b'a'..=b'f' => byte - b'a' + 10,
            b',' if at > 3 => break,
            _ => return None,
        };
        address = address.checked_mul(16)? | u64::from(digit);
        at += 1;
    }
    let digits = &line[at + 1..];
    let size = digits.iter().try_fold(0u64, |size, byte| match byte {
        b'0'..=b'9' => Some(size.checked_mul(10)? + u64::from(byte - b'0')),
        _ => None,
    })?;
    (!digits.is_empty() && size > 0 && size <= 4096).then_some(Access { address, size, load, store })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_read_and_the_rest_is_passed_over() {
        let access = |address, size, load, store| Some(Access { address, size, load, store });
        assert_eq!(parse_line(b" L 1ffefff7e0,8"), access(0x1f_feff_f7e0, 8, true, false));
        assert_eq!(parse_line(b" S 04222cac,16"), access(0x0422_2cac, 16, false, true));
        assert_eq!(parse_line(b" M 0,1"), access(0, 1, true, true));
        for other in
            ["I  04222cac,3", "==12== Lackey", "", " L ", " L ,8", " L 12", " L 12,", " L 12,x", " L g,1", " S 1,0"]
        {
            assert_eq!(parse_line(other.as_bytes()), None, "{other}");
        }
    }
}
