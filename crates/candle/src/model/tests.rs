//! Properties of every built-in model.

use candle_core::{DType, Device, Tensor};
use candle_nn::loss::cross_entropy;

use super::*;
use crate::network::tests::{
    check_against, check_brought, check_composed, check_same_gradients, check_slopes, check_training_slopes,
    gradients_of,
};
use crate::network::{CausalAttention, Relu, RmsNorm, SquaredRelu};
use unisono_train::LossSums;

/// Returns a model and its parameters.
fn build(kind: ModelKind, hidden: Option<&[usize]>, data: &Kind) -> (Box<dyn Module>, Parameters) {
    let parameters = Parameters::new(1);
    (Box::new(super::build(kind, hidden, 0.0, data, &parameters).unwrap()), parameters)
}

const IMAGES: Kind = Kind::Images { height: 16, width: 17, channels: 1, classes: 10 };

fn text() -> Kind {
    Kind::Text { context: 12, vocabulary: ('a'..='z').collect() }
}

/// Returns every model with data for it.
fn pairings() -> [(ModelKind, Kind); 3] {
    [(ModelKind::Mlp, IMAGES), (ModelKind::Cnn, IMAGES), (ModelKind::Transformer, text())]
}

/// Returns the inputs and targets of three samples.
fn batch(data: &Kind) -> (Tensor, Tensor) {
    let cycle = |count: usize, step: u32, modulus: u32| -> Vec<u32> {
        (0..count as u32).map(|i| i * step % modulus).collect()
    };
    let tensor = |values: Vec<u32>, shape: &[usize]| Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    match data {
        Kind::Table { .. } => unreachable!("the MLP sees tables as it sees images"),
        Kind::Images { height, width, channels, classes } => {
            let levels = height * width * channels;
            let pixels = tensor(cycle(3 * levels, 37, 101), &[3, levels]);
            let inputs = ((pixels.to_dtype(DType::F32).unwrap() / 50.0).unwrap() - 1.0).unwrap();
            (inputs, tensor(cycle(3, 7, *classes as u32), &[3]))
        }
        Kind::Text { context, vocabulary } => {
            let size = vocabulary.len() as u32;
            let inputs = tensor(cycle(3 * context, 7, size), &[3, *context]);
            (inputs, tensor(cycle(3 * context, 5, size), &[3 * context]))
        }
    }
}

fn loss(model: &dyn Module, data: &Kind) -> Tensor {
    let (inputs, targets) = batch(data);
    cross_entropy(&model.forward(&inputs).unwrap(), &targets).unwrap()
}

#[test]
fn model_names_round_trip() {
    for kind in ModelKind::ALL {
        assert_eq!(kind.to_string().parse::<ModelKind>().unwrap(), kind);
    }
    let message = "rnn".parse::<ModelKind>().unwrap_err().to_string();
    assert_eq!(
        message,
        "no model is called `rnn`; did you mean `cnn`? there are mlp, cnn, transformer, resnet"
    );
}

/// The estimate is exact for the largest items.
#[test]
fn parameter_count_is_known_before_the_model_is_built() {
    let table = Kind::Table { features: 7, classes: 3 };
    let more = [
        (ModelKind::Mlp, Some(&[5, 9][..]), IMAGES),
        (ModelKind::Mlp, Some(&[][..]), table),
        (ModelKind::ResNet, None, IMAGES),
        (ModelKind::ResNet, Some(&[5, 5, 9][..]), IMAGES),
    ];
    for (kind, hidden, data) in pairings().map(|(kind, data)| (kind, None, data)).into_iter().chain(more) {
        let replica = classifier(kind, hidden, 0.0, &data, &Parameters::new(0)).unwrap();
        let count: usize = replica.parameters().iter().map(unisono_train::Parameter::count).sum();
        assert_eq!(size(kind, hidden, &data).unwrap().parameters, count as f64, "{kind} {hidden:?}");
    }
    assert!(size(ModelKind::Transformer, None, &IMAGES).is_err());
    let absurd = size(ModelKind::Mlp, Some(&[usize::MAX, usize::MAX]), &IMAGES).unwrap();
    assert!(absurd.parameters > 1e38 && absurd.parameters.is_finite());
}

#[test]
fn activations_are_summed_over_all_layers() {
    for (kind, hidden, data, expected) in [
        (ModelKind::Mlp, None, IMAGES, 394.0),
        (ModelKind::Cnn, None, IMAGES, 10_086.0),
        (ModelKind::ResNet, Some(&[5, 5, 9][..]), IMAGES, 92_874.0),
        (ModelKind::Transformer, None, text(), 117_360.0),
    ] {
        assert_eq!(size(kind, hidden, &data).unwrap().activations, expected, "{kind}");
    }
}

#[test]
fn model_refuses_unsuitable_data() {
    let refusal = |kind, data: &Kind| layers(kind, None, 0.0, data).err().unwrap().to_string();
    let message = refusal(ModelKind::Transformer, &IMAGES);
    assert_eq!(message, "the transformer does not learn from images: use the mlp, the cnn or the resnet");
    for kind in [ModelKind::Mlp, ModelKind::Cnn] {
        let message = refusal(kind, &text());
        assert_eq!(message, format!("the {kind} does not learn from text: use the transformer"));
    }
    let message = refusal(ModelKind::Cnn, &Kind::Images { height: 28, width: 15, channels: 1, classes: 10 });
    assert!(message.contains("28x15 pixels are too small for the cnn"), "{message}");
    for widths in [&[8][..], &[32, 64], &[]] {
        let message = layers(ModelKind::Transformer, Some(widths), 0.0, &text()).err().unwrap().to_string();
        assert!(message.starts_with("--hidden must have the width of each block"), "{message}");
    }
}

/// Returns the names and values of all parameters.
fn values(kind: ModelKind, data: &Kind, seed: u64) -> Vec<(String, Vec<f32>)> {
    let mut replica = classifier(kind, None, 0.0, data, &Parameters::new(seed)).unwrap();
    let names: Vec<_> = replica.parameters().iter().map(|parameter| parameter.name.clone()).collect();
    let mut copy = |index| {
        let mut copy = Vec::new();
        replica.with_values(index, &mut |values| copy = values.to_vec()).unwrap();
        copy
    };
    (0..).zip(names).map(|(index, name)| (name, copy(index))).collect()
}

#[test]
fn seed_determines_every_parameter() {
    for (kind, data) in pairings() {
        assert_eq!(values(kind, &data, 1), values(kind, &data, 1));
        assert_ne!(values(kind, &data, 1), values(kind, &data, 2));
    }
}

#[test]
fn initial_logits_have_a_row_per_target_and_are_near_uniform() {
    for (kind, data) in pairings() {
        let (model, _) = build(kind, None, &data);
        let (inputs, targets) = batch(&data);
        let (classes, uniform) = match &data {
            Kind::Images { classes, .. } | Kind::Table { classes, .. } => (*classes, 1.5),
            Kind::Text { vocabulary, .. } => (vocabulary.len(), 0.5),
        };
        let logits = model.forward(&inputs).unwrap();
        assert_eq!(logits.dims(), [targets.dims1().unwrap(), classes]);
        let loss = loss(&*model, &data).to_scalar::<f32>().unwrap();
        assert!((loss - (classes as f32).ln()).abs() < uniform, "{kind}: {loss}");
    }
}

#[test]
fn gradients_equal_the_slopes_of_the_loss() {
    for (kind, data) in pairings() {
        let (model, parameters) = build(kind, None, &data);
        check_slopes(&mut network(model, &parameters), &batch(&data));
    }
}

#[test]
fn models_wait_for_parameters_before_using_them() {
    for (kind, data) in pairings() {
        let (model, parameters) = build(kind, None, &data);
        let mut replica = network(model, &parameters);
        let brought = check_brought(&mut replica, &batch(&data));
        let last = &replica.parameters()[*brought.last().unwrap()].name;
        assert!(last.starts_with("output"), "{kind} waits for {last} last");
    }
}

/// Returns a model as a replica whose batches are inputs and targets.
fn network(
    model: Box<dyn Module>,
    parameters: &Parameters,
) -> impl Replica<Batch = (Tensor, Tensor)> + use<> {
    Network::new(parameters, move |(inputs, targets): &(Tensor, Tensor)| {
        let sum = crate::network::cross_entropy(&model.forward(inputs)?, targets)?;
        let loss = f64::from(sum.to_scalar::<f32>()?);
        Ok(Loss { sum, tally: LossSums { targets: 1.0, loss, correct: 0.0 } })
    })
}

/// The output of `tests/reference/cnn_gradients.py`.
#[derive(serde::Deserialize)]
struct Reference {
    loss: f64,
    gradients: std::collections::BTreeMap<String, ReferenceGradient>,
}

#[derive(serde::Deserialize)]
struct ReferenceGradient {
    norm: f64,
    /// The stride at which `values` samples the values.
    every: usize,
    values: Vec<f64>,
}

/// Returns the integers of the function of the same name in `tests/reference/cnn_gradients.py`.
fn levels(count: usize, seed: usize, modulus: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |i| ((i * i * 3 + i * 37 + seed * 11) % 101 % modulus) as f32)
}

/// One image is black and one has a black frame. All values of a square are then equal, and many are zero before the bias.
#[test]
fn cnn_gradients_match_pytorch() {
    let reference = include_str!("../../tests/reference/cnn_gradients.json");
    let reference: Reference = serde_json::from_str(reference).unwrap();
    let (height, width, channels) = (20, 17, 2);
    let data = Kind::Images { height, width, channels, classes: 10 };
    let image = height * width * channels;
    let mut pixels: Vec<f32> = levels(3 * image, 5, 5).map(|level| level / 4.0).collect();
    pixels[image..2 * image].fill(0.0);
    for (at, pixel) in pixels[2 * image..].iter_mut().enumerate() {
        if at / channels / width < 6 || at / channels % width >= 9 {
            *pixel = 0.0;
        }
    }
    let inputs = Tensor::from_vec(pixels, (3, image), &Device::Cpu).unwrap();
    let targets = Tensor::new(&[3_u32, 7, 1], &Device::Cpu).unwrap();
    for parameters in [Parameters::new(0), Parameters::composed(0)] {
        let layers = layers(ModelKind::Cnn, None, 0.0, &data).unwrap();
        let model = Sequence::new(&layers, &parameters).unwrap();
        let mut replica = network(Box::new(model), &parameters);
        for index in 0..replica.parameters().len() {
            let is_convolution = replica.parameters()[index].name.starts_with("convolution");
            let scale = if is_convolution { 16.0 } else { 64.0 };
            let fill = |values: &mut [f32]| {
                let levels = levels(values.len(), index, 7);
                values.iter_mut().zip(levels).for_each(|(value, level)| *value = (level - 3.0) / scale);
            };
            replica.with_values(index, &mut { fill }).unwrap();
        }
        let (tally, gradients) = gradients_of(&mut replica, &(inputs.clone(), targets.clone()));
        assert!((tally.loss - reference.loss).abs() < 1e-4, "{} {}", tally.loss, reference.loss);
        assert_eq!(gradients.len(), reference.gradients.len());
        for (index, gradient) in gradients {
            let name = &replica.parameters()[index].name;
            let ReferenceGradient { norm, every, values } = &reference.gradients[name];
            let found = unisono_train::optimizer::square_sum(&gradient).sqrt();
            assert!((found - norm).abs() < 1e-4 * norm, "the norm of {name}: {found} {norm}");
            for (at, expected) in values.iter().enumerate() {
                let found = f64::from(gradient[at * every]);
                assert!(
                    (found - expected).abs() < 1e-5 * norm,
                    "{name} at {}: {found} {expected}",
                    at * every
                );
            }
        }
    }
}

// GPUs run this composition. The loops are compared function by function.
#[test]
fn composed_models_match_the_loops() {
    for (kind, data) in pairings() {
        let [mut fused, mut composed] = [Parameters::new(1), Parameters::composed(1)].map(|parameters| {
            let layers = layers(kind, None, 0.0, &data).unwrap();
            let model = Box::new(Sequence::new(&layers, &parameters).unwrap());
            network(model, &parameters)
        });
        check_same_gradients(&mut fused, &mut composed, &batch(&data));
    }
}

/// Checks a shortcut, which GPUs do not compute, against candle operations.
fn check_shortcut(shortcut: resnet::Shortcut, images: &Tensor) {
    let composed = |x: &Tensor| {
        let places = |side: usize| {
            let places = (0..side).step_by(shortcut.stride).map(|place| place as u32);
            Tensor::from_iter(places, x.device())
        };
        let (_, height, width, channels) = x.dims4()?;
        let x = x.index_select(&places(height)?, 1)?.index_select(&places(width)?, 2)?;
        let common = channels.min(shortcut.outputs);
        x.narrow(3, 0, common)?.pad_with_zeros(3, 0, shortcut.outputs - common)
    };
    check_against(composed, || shortcut, images);
}

#[test]
fn composed_functions_match_the_loops() {
    let tensor = |shape: &[usize]| {
        let count = shape.iter().product::<usize>() as u32;
        let values = (0..count).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    };
    for outputs in [2, 5] {
        check_shortcut(resnet::Shortcut { stride: 2, outputs }, &tensor(&[2, 5, 4, 3]));
    }
    // A row and a column remain.
    check_composed(|| cnn::MaxPool { side: 2 }, &tensor(&[2, 5, 7, 3]));
    // Most squares have several maxima, and most values are zero.
    let zeros_and_ones = tensor(&[2, 6, 6, 3]).relu().unwrap().ceil().unwrap();
    check_composed(|| cnn::MaxPool { side: 3 }, &zeros_and_ones);
    check_composed(|| Relu, &(zeros_and_ones - 1.0).unwrap());
    check_composed(|| Relu, &tensor(&[4, 9]));
    check_composed(|| RmsNorm, &tensor(&[4, 9]));
    check_composed(|| CausalAttention { context: 5, heads: 2 }, &tensor(&[10, 18]));
    check_composed(|| SquaredRelu, &tensor(&[4, 9]));
}

// There are several blocks, the last of which is incomplete.
#[test]
fn composed_functions_match_the_multithreaded_loops() {
    let tensor = |shape: &[usize]| {
        let count = shape.iter().product::<usize>() as u32;
        let values = (0..count).map(|at| (at * 37 % 1009) as f32 / 500.0 - 1.0).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    };
    let (images, rows) = (tensor(&[23, 20, 21, 5]), tensor(&[701, 70]));
    check_shortcut(resnet::Shortcut { stride: 2, outputs: 7 }, &images);
    check_composed(|| cnn::MaxPool { side: 2 }, &images);
    check_composed(|| Relu, &rows);
    check_composed(|| RmsNorm, &rows);
    check_composed(|| SquaredRelu, &rows);
    check_composed(|| CausalAttention { context: 70, heads: 3 }, &tensor(&[4 * 70, 45]));
}

// No token may depend on later ones.
#[test]
fn transformer_is_causal() {
    let (model, _) = build(ModelKind::Transformer, None, &text());
    let logits = |last: u32| -> Vec<Vec<f32>> {
        let tokens = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, last];
        let inputs = Tensor::new(&[tokens], &Device::Cpu).unwrap();
        model.forward(&inputs).unwrap().to_vec2().unwrap()
    };
    let (a, b) = (logits(11), logits(12));
    assert_eq!(a[..11], b[..11]);
    assert_ne!(a[11], b[11]);
}

/// Batch norm differs between evaluation and training, so these are slopes of the loss of training passes.
#[test]
fn resnet_gradients_equal_the_slopes_of_the_loss() {
    let data = Kind::Images { height: 5, width: 6, channels: 1, classes: 10 };
    let (model, parameters) = build(ModelKind::ResNet, Some(&[2, 2, 3]), &data);
    check_training_slopes(&mut network(model, &parameters), &batch(&data));
}
