//! Writes the seeds of a target into a folder, as `cargo fuzz` wants them: `cargo run --example seeds -- TARGET FOLDER`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = arguments.as_slice() else {
        return Err(std::io::Error::other("usage: seeds TARGET FOLDER"));
    };
    std::fs::create_dir_all(folder)?;
    for (number, seed) in (tidepool_fuzz::target(name).seeds)().iter().enumerate() {
        std::fs::write(Path::new(folder).join(format!("seed-{number:05}")), seed)?;
    }
    Ok(())
}
