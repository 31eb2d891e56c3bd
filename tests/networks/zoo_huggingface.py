"""Networks of Hugging Face's transformers, from small configurations."""

from functools import partial

from networks.third_party import allow_torchvision

allow_torchvision()

import transformers as hf  # noqa: E402

_WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**_WIDTHS, "vocab_size": 50, "max_position_embeddings": 32}


bert = partial(hf.BertModel, hf.BertConfig(**TEXT))
bert_classifier = partial(hf.BertForSequenceClassification, hf.BertConfig(**TEXT, num_labels=5))
_DISTILBERT = {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
distilbert = partial(hf.DistilBertModel, hf.DistilBertConfig(**_DISTILBERT, max_position_embeddings=32))
_GPT2 = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "use_cache": False}
gpt2_lm = partial(hf.GPT2LMHeadModel, hf.GPT2Config(**_GPT2, bos_token_id=0, eos_token_id=0))
llama_lm = partial(hf.LlamaForCausalLM, hf.LlamaConfig(**TEXT, num_key_value_heads=2, use_cache=False))
vit = partial(hf.ViTModel, hf.ViTConfig(**_WIDTHS, image_size=32, patch_size=8))
_SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
swin_classifier = partial(hf.SwinForImageClassification, hf.SwinConfig(**_SWIN, num_labels=5))
_CONVNEXT = hf.ConvNextConfig(hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 2, 1], num_labels=5)
convnext_classifier = partial(hf.ConvNextForImageClassification, _CONVNEXT)
_RESNET = hf.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 64, 128], depths=[1, 2, 1, 1], num_labels=5)
resnet_classifier = partial(hf.ResNetForImageClassification, _RESNET)
