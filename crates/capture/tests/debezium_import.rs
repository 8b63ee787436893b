//! Real-life connector files and the declarations that they become (`debezium/import/`).

use anyhow::{Context as _, Result};
use relais_capture::debezium::import::{ImportError, Imported, import};
use serde_json::{Value, json};

/// The declaration as a server would read it.
fn read(imported: &Imported) -> Result<Value> {
    serde_saphyr::from_str(&imported.declaration).with_context(|| imported.declaration.clone())
}

/// What is said about a setting.
fn said(imported: &Imported, setting: &str) -> Vec<String> {
    let about = imported.remarks.iter().filter(|remark| remark.setting == setting);
    about.map(|remark| remark.what.clone()).collect()
}

#[test]
fn a_connector_becomes_a_capture() -> Result<()> {
    let imported = import(include_str!("debezium/import/shop.json"))?;
    let expected = json!({"captures": [{
        "captureName": "shop",
        "databaseUrl": {"env": "SHOP_DATABASE_URL"},
        "tables": ["public.orders", "public.customers"],
        "excludeColumns": ["public.customers.ssn"],
        "maskColumns": {"public.customers.email": {"hash": {"env": "MASK_SALT"}}, "public.customers.name": "*****"},
        "keyColumns": {"public.orders": ["customer_id", "id"]},
        "snapshot": "initial",
        "slot": "debezium_shop",
        "publication": "dbz_shop",
        "envelope": {
            "schemas": false,
            "tombstones": false,
            "decimal": "string",
            "time": "connect",
            "binary": "bytes",
            "interval": "numeric",
        },
        "destination": "{capture}.{schema}.{table}",
        "sink": {"kafka": {"brokers": "localhost:9092"}},
    }]});
    assert_eq!(read(&imported)?, expected);
    // The whole text, as people see it.
    assert_eq!(imported.declaration, include_str!("debezium/import/shop.yaml"));
    Ok(())
}

#[test]
fn every_setting_that_is_not_carried_over_is_named() -> Result<()> {
    let imported = import(include_str!("debezium/import/shop.json"))?;
    for (setting, word) in [
        ("tasks.max", "stand by"),
        ("table.include.list", "`public.order_.*`"),
        ("message.key.columns", "`(.*).audit`"),
        ("column.truncate.to.20.chars", "mask"),
        ("heartbeat.action.query", "keep-alives"),
        ("signal.data.collection", "signalling table"),
        ("provide.transaction.metadata", "transaction topic"),
        ("transforms.unwrap", "envelope"),
        ("transforms.route", "`destination`"),
        ("skipped.operations", "truncates"),
        ("slot.sauce", "unknown"),
    ] {
        let said = said(&imported, setting);
        assert!(said.iter().any(|what| what.contains(word)), "{setting}: {said:?}");
        assert!(imported.declaration.contains(&format!("# - `{setting}` ")), "{setting}");
    }
    Ok(())
}

#[test]
fn secrets_are_not_printed() -> Result<()> {
    for file in [include_str!("debezium/import/shop.json"), include_str!("debezium/import/orders-outbox.json")] {
        let imported = import(file)?;
        for secret in ["hunter2", "CzQMA0cB5K", "/secrets/"] {
            assert!(!format!("{imported:?}").contains(secret), "{secret}");
        }
    }
    Ok(())
}

#[test]
fn the_event_router_becomes_an_outbox() -> Result<()> {
    let imported = import(include_str!("debezium/import/orders-outbox.json"))?;
    let expected = json!({"outboxes": [{
        "outboxName": "order-outbox",
        "databaseUrl": {"env": "DBSERVER1_DATABASE_URL"},
        "table": "inventory.outboxevent",
        "mode": "capture",
        "key": "{aggregate_id}",
        "destination": "{aggregate_type}.events",
        "headers": {"eventType": "{event_type}"},
        "sink": {"kafka": {"brokers": "localhost:9092"}},
    }]});
    assert_eq!(read(&imported)?, expected);
    for (setting, word) in [
        ("transforms.outbox.table.field.event.key", "RENAME COLUMN aggregateid TO aggregate_id"),
        ("transforms.outbox.table.field.event.type", "RENAME COLUMN type TO event_type"),
        ("transforms.outbox.table.field.event.timestamp", "RENAME COLUMN timestamp TO created_at"),
        ("transforms.outbox.route.by.field", "`aggregate_type`"),
        ("transforms.outbox.table.fields.additional.placement", "`tenant`"),
        ("transforms.outbox.table.fields.additional.placement", "`region`"),
        ("transforms.outbox.table.expand.json.payload", "JSON"),
        ("table.include.list", "`published_at`"),
        ("slot.name", "slot of its own"),
    ] {
        let said = said(&imported, setting);
        assert!(said.iter().any(|what| what.contains(word)), "{setting}: {said:?}");
    }
    Ok(())
}

/// The connector that was recorded: its columns are those of Relais, so that nothing has to be renamed.
#[test]
fn an_outbox_with_our_columns_needs_no_change() -> Result<()> {
    let imported = import(
        "name=orders\nconnector.class=io.debezium.connector.postgresql.PostgresConnector\ndatabase.dbname=shop\n\
         topic.prefix=peer\nplugin.name=pgoutput\nslot.name=s\npublication.name=p\ntable.include.list=public.outbox\n\
         transforms=outbox\ntransforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
         transforms.outbox.table.field.event.key=aggregate_id\ntransforms.outbox.table.field.event.type=event_type\n\
         transforms.outbox.route.by.field=event_type\n\
         transforms.outbox.table.fields.additional.placement=event_type:header\n",
    )?;
    let outbox = &read(&imported)?["outboxes"][0];
    assert_eq!(outbox["destination"], "outbox.event.{event_type}");
    assert_eq!(outbox["headers"], json!({"event_type": "{event_type}"}));
    assert!(!imported.declaration.contains("RENAME"), "{}", imported.declaration);
    Ok(())
}

#[test]
fn the_settings_of_debezium_server_are_read() -> Result<()> {
    let imported = import(include_str!("debezium/import/server.properties"))?;
    let capture = &read(&imported)?["captures"][0];
    assert_eq!(capture["tables"], json!(["inventory.customers", "inventory.orders"]));
    assert_eq!(capture["snapshot"], "never");
    assert_eq!(capture["sink"]["kafka"]["brokers"], "kafka-1:9092,kafka-2:9092");
    assert_eq!(capture["envelope"]["schemas"], false);
    assert!(said(&imported, "quarkus.log.console.json").is_empty());
    assert!(said(&imported, "publication.autocreate.mode")[0].contains("every table"));
    Ok(())
}

#[test]
fn a_file_with_little_in_it_is_completed_with_remarks() -> Result<()> {
    let imported = import(r#"{"connector.class": "io.debezium.connector.postgresql.PostgresConnector"}"#)?;
    let capture = &read(&imported)?["captures"][0];
    assert_eq!(capture["captureName"], "imported");
    // Without `plugin.name` the slot is one that Relais cannot read.
    assert_eq!((capture.get("slot"), capture.get("publication")), (None, None));
    for setting in ["topic.prefix", "plugin.name", "table.include.list", "value.converter", "slot.name"] {
        assert!(!said(&imported, setting).is_empty(), "{setting}");
    }
    Ok(())
}

#[test]
fn other_files_are_refused() {
    let mysql = r#"{"connector.class": "io.debezium.connector.mysql.MySqlConnector"}"#;
    assert!(matches!(import(mysql), Err(ImportError::Connector(class)) if class.contains("MySql")));
    assert!(matches!(import("{"), Err(ImportError::Json(_))));
    assert!(matches!(import("# nothing\n"), Err(ImportError::Empty)));
}

/// A value must not end a comment or a string, whatever is in it.
#[test]
fn odd_values_stay_inside_their_place() -> Result<()> {
    let odd = "a\n# b: {x} \"y\" 'z'";
    let file = json!({"name": odd, "config": {
        "topic.prefix": odd, "plugin.name": "pgoutput", "slot.name": odd, "database.hostname": odd,
        "table.include.list": odd, "unavailable.value.placeholder": odd, "snapshot.mode": odd, "key.converter": odd,
        "message.key.columns": odd, odd: odd, "transforms": "t", "transforms.t.type": odd,
    }});
    let imported = import(&file.to_string())?;
    let declaration = read(&imported)?;
    assert_eq!(declaration["captures"][0]["slot"], odd);
    assert_eq!(declaration["captures"][0]["envelope"]["unavailableValue"], odd);
    Ok(())
}
