//! The size of a model before it is built.

/// The numbers that a model stores and computes. Floating-point, so that nothing overflows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Size {
    /// The number of parameters.
    pub parameters: f64,
    /// The numbers of a sample.
    pub inputs: f64,
    /// The numbers that a forward pass computes for a sample, and keeps until the backward pass.
    pub activations: f64,
    /// The ratio of the peak during a backward pass, which includes gradients, to these activations. Measured.
    pub with_backward: f64,
}

impl Size {
    /// Adds a layer: a matrix product, with this many rows per sample.
    pub(super) fn layer(&mut self, rows: f64, inputs: f64, outputs: f64, has_bias: bool) {
        self.parameters += inputs * outputs + if has_bias { outputs } else { 0.0 };
        self.activations += rows * outputs;
    }
}
