"""Networks of Hugging Face's transformers, from small configurations."""

from __future__ import annotations

from torch import nn

from networks.third_party import allow_torchvision

allow_torchvision()

import transformers as hf  # noqa: E402

TEXT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}


def bert() -> nn.Module:
    return hf.BertModel(hf.BertConfig(**TEXT))


def bert_classifier() -> nn.Module:
    return hf.BertForSequenceClassification(hf.BertConfig(**TEXT, num_labels=5))


def distilbert() -> nn.Module:
    config = hf.DistilBertConfig(
        vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=32
    )
    return hf.DistilBertModel(config)


def gpt2_lm() -> nn.Module:
    config = hf.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return hf.GPT2LMHeadModel(config)


def llama_lm() -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, num_key_value_heads=2, use_cache=False))


def vit() -> nn.Module:
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8
    )
    return hf.ViTModel(config)


def swin_classifier() -> nn.Module:
    config = hf.SwinConfig(
        image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5
    )
    return hf.SwinForImageClassification(config)


def convnext_classifier() -> nn.Module:
    config = hf.ConvNextConfig(hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 2, 1], num_labels=5)
    return hf.ConvNextForImageClassification(config)


def resnet_classifier() -> nn.Module:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 64, 128], depths=[1, 2, 1, 1], num_labels=5)
    return hf.ResNetForImageClassification(config)
