#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| (tidepool_fuzz::target("wire").run)(input));
