//! Compiles the protocol without `protoc`: protox reads the file, tonic writes the code.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["externalscaler.proto"], ["proto"])?;
    println!("cargo::rerun-if-changed=proto");
    let client = std::env::var_os("CARGO_FEATURE_CLIENT").is_some();
    tonic_prost_build::configure().build_client(client).build_transport(false).compile_fds(files)?;
    Ok(())
}
