//! KEDA's external scaler.

#[expect(missing_docs, clippy::allow_attributes, reason = "generated")]
pub mod proto {
    tonic::include_proto!("externalscaler");
}
