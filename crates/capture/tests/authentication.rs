//! How the replication connection proves who it is, and whom it trusts, on a real PostgreSQL with certificates of its own.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use relais_capture::{Address, CaptureError, CapturedDatabase, ReplicationConnection};
use relais_testkit::PostgresServer;
use sqlx::{AssertSqlSafe, PgPool};

/// An authority, and files that it has signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
struct Signed {
    certificate: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Result<Self> {
        Self::with(name, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    /// What it signs is signed by this algorithm.
    fn with(name: &str, algorithm: &'static rcgen::SignatureAlgorithm) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate_for(algorithm)?)?))
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// For a host or a user.
    fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Result<Signed> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate()?;
        Ok(Signed { certificate: params.signed_by(&key, &self.0)?.pem(), key: key.serialize_pem() })
    }
}

/// Who is let in, and how. `replication` is the database of physical replication only: ours is connected to a database.
const RULES: &str = "host all postgres 127.0.0.1/32 trust
host all scram 127.0.0.1/32 scram-sha-256
host all md5 127.0.0.1/32 md5
host all clear 127.0.0.1/32 password
host all unable 127.0.0.1/32 scram-sha-256
hostnossl all trusted 127.0.0.1/32 trust
hostssl all trusted 127.0.0.1/32 trust
host all refused 127.0.0.1/32 reject
hostssl all encrypted 127.0.0.1/32 scram-sha-256
hostssl all certified 127.0.0.1/32 cert
";

const USERS: &str = "SET password_encryption = 'scram-sha-256';
    CREATE ROLE scram LOGIN REPLICATION PASSWORD 'p@ss:w/rd%';
    CREATE ROLE clear LOGIN REPLICATION PASSWORD 'secret';
    CREATE ROLE encrypted LOGIN REPLICATION PASSWORD 'secret';
    CREATE ROLE unable LOGIN PASSWORD 'secret';
    CREATE ROLE refused LOGIN REPLICATION;
    CREATE ROLE trusted LOGIN REPLICATION;
    CREATE ROLE certified LOGIN REPLICATION;
    SET password_encryption = 'md5';
    CREATE ROLE md5 LOGIN REPLICATION PASSWORD 'secret'";

struct World {
    server: PostgresServer,
    folder: tempfile::TempDir,
}

impl World {
    /// A server without TLS.
    async fn plain() -> Result<Self> {
        Self::start(PostgresServer::options()).await
    }

    /// A server with this certificate, which asks clients for one of `clients`.
    async fn encrypted(server: &Signed, clients: &Authority) -> Result<Self> {
        let options = PostgresServer::options().set("ssl", "on").set("ssl_ca_file", "clients.crt");
        let options = options.file("server.crt", &server.certificate).file("server.key", &server.key);
        Self::start(options.file("clients.crt", &clients.pem())).await
    }

    async fn start(options: relais_testkit::PostgresOptions) -> Result<Self> {
        let server = options.file("pg_hba.conf", RULES).start().await?;
        let pool = PgPool::connect(&server.url("postgres")).await?;
        sqlx::raw_sql(AssertSqlSafe(USERS.to_owned())).execute(&pool).await?;
        pool.close().await;
        Ok(Self { server, folder: tempfile::tempdir()? })
    }

    fn file(&self, name: &str, content: &str) -> Result<String> {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content)?;
        Ok(path.display().to_string())
    }

    fn url(&self, user: &str, query: &str) -> String {
        self.url_of("127.0.0.1", user, query)
    }

    fn url_of(&self, host: &str, user: &str, query: &str) -> String {
        format!("postgres://{user}@{host}:{}/postgres?{query}", self.server.addr().port())
    }

    /// Whether the connection is encrypted, as the server sees it.
    async fn connect(&self, url: &str) -> Result<bool, CaptureError> {
        let mut connection = ReplicationConnection::connect(&Address::parse(url)?, 1024 * 1024).await?;
        connection.identify_system().await?;
        let rows = connection.query("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await?;
        Ok(rows[0][0].as_deref() == Some("t"))
    }

    async fn refused(&self, url: &str) -> Result<CaptureError> {
        let begun = Instant::now();
        let refused = self.connect(url).await.err().with_context(|| format!("{url} is let in"))?;
        ensure!(begun.elapsed() < Duration::from_secs(10), "{url} hangs: {refused:?}");
        ensure!(!refused.describe().contains("secret"), "{refused:?}");
        Ok(refused)
    }

    async fn says(&self, url: &str, said: &str) -> Result<()> {
        let refused = self.refused(url).await?;
        ensure!(refused.describe().contains(said), "{url}: {said:?} is not said: {}", refused.describe());
        Ok(())
    }
}

#[tokio::test]
async fn every_kind_of_password_is_known_and_a_wrong_one_is_refused_at_once() -> Result<()> {
    let world = World::plain().await?;
    for right in ["scram:p%40ss%3Aw%2Frd%25", "md5:secret", "clear:secret", "trusted", "trusted:unasked"] {
        ensure!(!world.connect(&world.url(right, "")).await.with_context(|| right.to_owned())?);
    }
    for wrong in ["scram:wrong", "md5:wrong", "clear:wrong", "nobody:wrong"] {
        let refused = world.refused(&world.url(wrong, "")).await?;
        ensure!(matches!(refused.code(), Some("28P01" | "28000")) && !refused.is_passing(), "{wrong}: {refused:?}");
    }
    for without in ["scram", "md5", "clear"] {
        world.says(&world.url(without, ""), "asks for a password, and the URL has none").await?;
    }
    ensure!(!world.connect(&world.url("clear", "password=secret")).await?, "a password may be a parameter");
    Ok(())
}

#[tokio::test]
async fn who_may_not_replicate_or_is_kept_out_is_told_so() -> Result<()> {
    let world = World::plain().await?;
    world.says(&world.url("refused", ""), "pg_hba.conf rejects connection").await?;
    world.says(&world.url("encrypted:secret", ""), "no pg_hba.conf entry").await?;
    let unable = world.refused(&world.url("unable:secret", "")).await?;
    ensure!(unable.code() == Some("42501") && unable.to_string().contains("replication role"), "{unable:?}");
    ensure!(!unable.is_passing(), "{unable:?}");
    // A capture says it before it makes anything, with what to do.
    let database = CapturedDatabase::connect(&world.url("unable:secret", "")).await?;
    let lacks = database.check(&relais_capture::CaptureOptions::new("shop", &["orders"])?).await?;
    ensure!(lacks.iter().any(|lack| lack.to_string().contains("ALTER ROLE \"unable\" REPLICATION")), "{lacks:?}");
    Ok(())
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_asked_for() -> Result<()> {
    let world = World::plain().await?;
    for mode in ["disable", "allow", "prefer"] {
        ensure!(!world.connect(&world.url("clear:secret", &format!("sslmode={mode}"))).await?, "{mode}");
    }
    let root = world.file("root.crt", &Authority::new("root")?.pem())?;
    for mode in ["require", "verify-ca", "verify-full"] {
        let query = format!("sslmode={mode}&sslrootcert={root}");
        world.says(&world.url("clear:secret", &query), "has none, and the URL asks for it").await?;
    }
    world.says(&world.url("scram:p%40ss%3Aw%2Frd%25", "channel_binding=require"), "requires channel binding").await
}

/// The name of the certificate is `localhost`; the address 127.0.0.1 is another one.
#[tokio::test]
async fn each_sslmode_checks_what_it_promises() -> Result<()> {
    let (root, other) = (Authority::new("root")?, Authority::new("other")?);
    let world = World::encrypted(&root.sign("localhost", |_| {})?, &root).await?;
    let (root, other) = (world.file("root.crt", &root.pem())?, world.file("other.crt", &other.pem())?);
    let (right, wrong) = (format!("&sslrootcert={root}"), format!("&sslrootcert={other}"));
    for (host, mode, roots, encrypted) in [
        ("127.0.0.1", "disable", "", Ok(false)),
        ("127.0.0.1", "allow", "", Ok(false)),
        ("127.0.0.1", "prefer", "", Ok(true)),
        ("127.0.0.1", "prefer", &wrong, Ok(true)),
        ("127.0.0.1", "require", "", Ok(true)),
        ("127.0.0.1", "require", &right, Ok(true)),
        // As with libpq: whoever names a root wants it to be checked.
        ("127.0.0.1", "require", &wrong, Err("UnknownIssuer")),
        ("127.0.0.1", "verify-ca", &right, Ok(true)),
        ("127.0.0.1", "verify-ca", &wrong, Err("UnknownIssuer")),
        ("127.0.0.1", "verify-ca", "", Err("UnknownIssuer")),
        ("localhost", "verify-full", &right, Ok(true)),
        ("localhost", "verify-full", &wrong, Err("UnknownIssuer")),
        ("127.0.0.1", "verify-full", &right, Err("not valid for name")),
        ("127.0.0.1", "verify-full", "&sslrootcert=/nowhere/root.crt", Err("/nowhere/root.crt can not be read")),
    ] {
        let url = world.url_of(host, "clear:secret", &format!("sslmode={mode}{roots}"));
        match encrypted {
            Ok(encrypted) => ensure!(world.connect(&url).await.with_context(|| url.clone())? == encrypted, "{url}"),
            Err(said) => world.says(&url, said).await?,
        }
    }
    // The roots of the system are not trusted beside the one that is named, and neither is an empty file.
    let nobody = world.file("nobody.crt", "")?;
    world.says(&world.url("clear:secret", &format!("sslmode=verify-ca&sslrootcert={nobody}")), "nobody.crt").await?;
    // A server that lets nobody in without TLS.
    world.says(&world.url("encrypted:secret", "sslmode=disable"), "no encryption").await?;
    ensure!(world.connect(&world.url("encrypted:secret", "")).await?, "`prefer` is the default");
    Ok(())
}

#[tokio::test]
async fn an_expired_certificate_is_refused_by_those_who_check() -> Result<()> {
    let root = Authority::new("root")?;
    let expired = root.sign("localhost", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1))?;
    let world = World::encrypted(&expired, &root).await?;
    let root = world.file("root.crt", &root.pem())?;
    for mode in ["verify-ca", "verify-full"] {
        let url = world.url_of("localhost", "clear:secret", &format!("sslmode={mode}&sslrootcert={root}"));
        world.says(&url, "expired").await?;
    }
    ensure!(world.connect(&world.url("clear:secret", "sslmode=require")).await?);
    Ok(())
}

#[tokio::test]
async fn a_client_certificate_is_shown_if_the_url_names_one() -> Result<()> {
    let (root, other) = (Authority::new("root")?, Authority::new("other")?);
    let world = World::encrypted(&root.sign("localhost", |_| {})?, &root).await?;
    let (own, foreign, anothers) =
        (root.sign("certified", |_| {})?, other.sign("certified", |_| {})?, root.sign("somebody", |_| {})?);
    let url = |name: &str, signed: &Signed| -> Result<String> {
        let certificate = world.file(&format!("{name}.crt"), &signed.certificate)?;
        let key = world.file(&format!("{name}.key"), &signed.key)?;
        Ok(world.url("certified", &format!("sslmode=require&sslcert={certificate}&sslkey={key}")))
    };
    ensure!(world.connect(&url("own", &own)?).await?);
    // The same for the connections that ask questions.
    CapturedDatabase::connect(&url("own", &own)?).await?;
    world.refused(&url("foreign", &foreign)?).await?;
    world.says(&url("anothers", &anothers)?, "certificate authentication failed").await?;
    world.says(&world.url("certified", "sslmode=require"), "valid client certificate").await?;
    let mixed = Signed { certificate: own.certificate, key: anothers.key };
    world.says(&url("mixed", &mixed)?, "TLS can not be used").await?;
    world.says(&world.url("certified", "sslmode=require&sslcert=/a.crt&sslkey=/a.key"), "/a.crt can not be read").await
}

#[tokio::test]
async fn scram_is_bound_to_the_certificate_where_that_is_required() -> Result<()> {
    let root = Authority::new("root")?;
    let world = World::encrypted(&root.sign("localhost", |_| {})?, &root).await?;
    for mode in ["disable", "prefer", "require"] {
        let query = format!("sslmode=require&channel_binding={mode}");
        ensure!(world.connect(&world.url("encrypted:secret", &query)).await.with_context(|| query)?);
    }
    world.says(&world.url("encrypted:wrong", "sslmode=require&channel_binding=require"), "28P01").await?;
    // Nothing else is bound, and no password is sent to find out.
    for user in ["clear:secret", "md5:secret", "trusted"] {
        let url = world.url(user, "sslmode=require&channel_binding=require");
        world.says(&url, "requires channel binding").await?;
    }
    world.says(&world.url("clear:secret", "sslmode=disable&channel_binding=require"), "requires channel binding").await
}

/// The hash that is bound to is that of the certificate's signature. Where that has none, SCRAM is not bound.
#[tokio::test]
async fn the_certificates_signature_decides_what_scram_is_bound_to() -> Result<()> {
    let longer = Authority::with("longer", &rcgen::PKCS_ECDSA_P384_SHA384)?;
    let world = World::encrypted(&longer.sign("localhost", |_| {})?, &longer).await?;
    ensure!(world.connect(&world.url("encrypted:secret", "channel_binding=require")).await?);
    let unknown = Authority::with("unknown", &rcgen::PKCS_ED25519)?;
    let world = World::encrypted(&unknown.sign("localhost", |_| {})?, &unknown).await?;
    ensure!(world.connect(&world.url("encrypted:secret", "channel_binding=prefer")).await?);
    world.says(&world.url("encrypted:secret", "channel_binding=require"), "requires channel binding").await
}
