//! The import of a Debezium connector: its settings become a declaration.
//!
//! A connector with the outbox event router becomes an outbox, any other a capture. Every setting of the file is either in
//! the declaration or in a comment behind it, with what to do about it. Secrets are never printed.
//!
//! The folder by file: `settings` reads the file, `capture` and `outbox` write the two kinds of declaration, `known` says why
//! a setting is not carried over, `yaml` writes scalars.

mod capture;
mod known;
mod outbox;
mod settings;
mod yaml;

use settings::Settings;

/// What a connector's file became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The declaration, as YAML with comments.
    pub declaration: String,
    /// What the declaration does not have, in the order of the comments.
    pub remarks: Vec<Remark>,
}

/// A setting that is not carried over, or only in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The setting's name.
    pub setting: String,
    /// Why, or what to do.
    pub what: String,
}

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is neither JSON nor properties.
    #[error("read the connector: {0}")]
    Json(#[from] serde_json::Error),
    /// It has no settings.
    #[error("read the connector: there is no setting in it; give the JSON that Connect gets, or a .properties file")]
    Empty,
    /// It is for another database.
    #[error("import {0}: only connectors for PostgreSQL can be imported")]
    Connector(String),
}

/// Makes a declaration of a connector's file: JSON as Connect gets it, with or without `name` and `config` around it, or
/// properties, those of Debezium Server too.
pub fn import(text: &str) -> Result<Imported, ImportError> {
    let mut settings = Settings::read(text)?;
    if let Some(class) = settings.take("connector.class")
        && !class.contains("PostgresConnector")
    {
        return Err(ImportError::Connector(class));
    }
    let mut draft = Draft::new(&mut settings);
    draft.plugin(&mut settings);
    let router = settings.transforms().into_iter().find(|alias| {
        let class = settings.peek(&format!("transforms.{alias}.type"));
        class.is_some_and(|class| class.ends_with(".outbox.EventRouter"))
    });
    match router {
        Some(alias) => outbox::write(&mut draft, &mut settings, &alias),
        None => capture::write(&mut draft, &mut settings),
    }
    draft.finish(settings)
}

/// A declaration that is being written.
struct Draft {
    connector: Option<String>,
    /// `topic.prefix`, or the connector's name.
    name: String,
    body: String,
    remarks: Vec<Remark>,
    /// Whether the slot is one that Relais can read.
    pgoutput: bool,
}

impl Draft {
    fn new(settings: &mut Settings) -> Self {
        let connector = settings.take("name");
        let prefix = settings.take("topic.prefix");
        let old_prefix = settings.take("database.server.name");
        let mut draft =
            Self { name: String::new(), body: String::new(), remarks: Vec::new(), pgoutput: true, connector };
        let name = prefix.or(old_prefix);
        if name.is_none() {
            let what = "is not in the file; the declaration's name is made up. Topics begin with it";
            draft.remark("topic.prefix", what);
        }
        draft.name = yaml::name(name.as_deref().or(draft.connector.as_deref()).unwrap_or("imported"));
        draft
    }

    fn remark(&mut self, setting: impl Into<String>, what: impl Into<String>) {
        self.remarks.push(Remark { setting: setting.into(), what: what.into() });
    }

    /// Adds a line to the entry.
    fn line(&mut self, key: &str, value: &str) {
        self.body.push_str(&format!("    {key}: {value}\n"));
    }

    fn plugin(&mut self, settings: &mut Settings) {
        let plugin = settings.take("plugin.name");
        self.pgoutput = plugin.as_deref() == Some("pgoutput");
        match plugin.as_deref() {
            Some("pgoutput") => {}
            None => self.remark(
                "plugin.name",
                "is not in the file, which means `decoderbufs` in Debezium. Relais reads `pgoutput`, so that the old slot \
                 cannot be taken over: a new one is made",
            ),
            Some(_) => self.remark(
                "plugin.name",
                "is not `pgoutput`, the only one that Relais reads. The old slot cannot be taken over: a new one is made",
            ),
        }
    }

    /// Where the database is. Only the variable's name is in the declaration.
    fn database(&mut self, settings: &mut Settings) {
        let variable = format!("{}_DATABASE_URL", yaml::variable(&self.name));
        let mut take = |name: &str| settings.take(name);
        let (host, port) = (take("database.hostname"), take("database.port").unwrap_or_else(|| "5432".to_owned()));
        let (user, database) = (take("database.user"), take("database.dbname"));
        let (password, mode) = (take("database.password"), take("database.sslmode"));
        let url = format!(
            "postgres://{}{}@{}:{port}/{}{}",
            user.as_deref().unwrap_or("USER"),
            if password.is_some() { ":PASSWORD" } else { "" },
            host.as_deref().unwrap_or("HOST"),
            database.as_deref().unwrap_or("DATABASE"),
            mode.map(|mode| format!("?sslmode={mode}")).unwrap_or_default(),
        );
        self.body.push_str(&format!("    # {}\n", yaml::one_line(&url)));
        self.line("databaseUrl", &format!("{{env: {variable}}}"));
    }

    /// Slot and publication, under their old names, so that the slot's position is kept.
    fn slot(&mut self, settings: &mut Settings) {
        let slot = settings.take("slot.name").unwrap_or_else(|| "debezium".to_owned());
        let publication = settings.take("publication.name").unwrap_or_else(|| "dbz_publication".to_owned());
        if self.pgoutput {
            self.line("slot", &yaml::scalar(&slot));
            self.line("publication", &yaml::scalar(&publication));
        } else {
            self.remark("slot.name", "is for another plugin: drop that slot once Debezium is stopped for good");
        }
    }

    /// Kafka, if the file says where it is.
    fn sink(&mut self, settings: &mut Settings) {
        let kind = settings.take("sink.type");
        let brokers = [
            "sink.kafka.producer.bootstrap.servers",
            "producer.override.bootstrap.servers",
            "bootstrap.servers",
            "database.history.kafka.bootstrap.servers",
            "schema.history.internal.kafka.bootstrap.servers",
        ]
        .into_iter()
        .filter_map(|name| settings.take(name))
        .fold(None, |first: Option<String>, next| first.or(Some(next)));
        if brokers.is_none() {
            self.body.push_str("    # The brokers are those of Connect's worker (bootstrap.servers).\n");
        }
        let brokers = yaml::quoted(brokers.as_deref().unwrap_or("localhost:9092"));
        self.line("sink", &format!("{{kafka: {{brokers: {brokers}}}}}"));
        if let Some(kind) = kind.filter(|kind| kind != "kafka") {
            let what =
                format!("was `{}`, the declaration has Kafka: choose one of Relais' sinks", yaml::one_line(&kind));
            self.remark("debezium.sink.type", what);
        }
    }

    /// Says of each setting that is left what to do about it.
    fn finish(mut self, settings: Settings) -> Result<Imported, ImportError> {
        for name in settings.names() {
            let what = known::why(&name).unwrap_or("is unknown to this import: see whether you need it");
            self.remark(known::without_secret(&name), what);
        }
        let mut declaration = match &self.connector {
            Some(connector) => format!("# Made of the Debezium connector {}.\n", yaml::one_line(connector)),
            None => "# Made of a Debezium connector.\n".to_owned(),
        };
        declaration.push_str(&self.body);
        if !self.remarks.is_empty() {
            declaration.push_str("# What is not carried over, or needs a look:\n");
        }
        for remark in &self.remarks {
            let text = format!("`{}` {}.", yaml::one_line(&remark.setting), yaml::one_line(&remark.what));
            declaration.push_str(&yaml::comment(&text));
        }
        Ok(Imported { declaration, remarks: self.remarks })
    }
}
