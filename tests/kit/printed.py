# ruff: noqa: E501, RUF001  (the lines are as trainers print them)
"""What trainers print, by their own format strings: name, lines of a run, and its steps and losses.

Every entry prints the same run: a loss at each of six steps.
"""

from collections.abc import Callable

STEPS = [10, 20, 30, 40, 50, 60]
LOSSES = [7.25, 6.5, 6.125, 5.75, 5.5, 5.25]

Printed = Callable[[int, float], str]

BY_STEP: dict[str, Printed] = {
    "hf": lambda s, x: (
        f"{{'loss': {x}, 'grad_norm': 1.25, 'learning_rate': 1e-05, 'epoch': {s / 1000}}}\n"
    ),
    "hf5": lambda s, x: (
        f"{{'loss': '{x}', 'grad_norm': '1.25', 'learning_rate': '1e-05', 'epoch': '{s / 1000}'}}\n"
    ),
    "verl": lambda s, x: (
        f"step:{s} - actor/pg_loss:np.float64({x}) - actor/kl_loss:0.001 - actor/grad_norm:np.float64(0.2) - critic/rewards/mean:0.5\n"
    ),
    "maxtext": lambda s, x: (
        f"completed step: {s}, seconds: 1.234, TFLOP/s/device: 312.1, Tokens/s/device: 7000.1, total_weights: 65536, loss: {x}\n"
    ),
    "nanotron": lambda s, x: (
        f"[default0]:01/02/2025 10:00:00 [INFO|DP=0|PP=0|TP=0|ip-26-0]: iteration: {s} / 1000 | consumed_tokens: {s * 2.6:.1f}M | time_per_iteration_ms: 312 | tokens_per_sec: 84K | tokens_per_sec_per_gpu: 10.5K | global_batch_size: 256 | lm_loss: {x} | lr: 0.0003 | model_tflops_per_gpu: 120 | grad_norm: 0.78\n"
    ),
    "torchtune bar": lambda s, x: (
        f"1|{s}|Loss: {x}:   5%|▌         | {s}/200 [00:10<03:10,  1.00s/it]\n"
    ),
    "torchtune": lambda s, x: f"Step {s} | loss:{x} lr:2e-05 tokens_per_second_per_gpu:1000.5 \n",
    "litgpt": lambda s, x: (
        f"Epoch 1 | iter {s} step {s} | loss train: {x}, val: n/a | iter time: 123.45 ms (step) remaining time: 1:02:03\n"
    ),
    "kohya": lambda s, x: (
        f"\rsteps:  {s // 6}%|█▎        | {s}/600 [10:00<1:10:00,  3.00s/it, avr_loss={x}]"
    ),
    "swift": lambda s, x: (
        f'{{"loss": {x}, "grad_norm": 1.0, "learning_rate": 1e-05, "memory(GiB)": 12.1, "global_step/max_steps": "{s}/2161", "percentage": "1.00%", "elapsed_time": "10s"}}\n'
    ),
    "dllogger": lambda s, x: (
        f"DLL 2020-06-25 16:28:34.181 - Training Epoch: 0 Training Iteration: {s}  loss : {x}  learning_rate : 0.001\n"
    ),
    "dllogger json": lambda s, x: (
        f'DLLL {{"timestamp": "1593100114.2", "datetime": "2020-06-25 16:28:34.181", "elapsedtime": "12.3", "type": "LOG", "step": [0, {s}], "data": {{"loss": {x}, "lr": 0.001}}}}\n'
    ),
    "bars": lambda s, x: f"step: {s} | loss: {x}\n",
    "tutorial": lambda s, x: f"Epoch [1/10], Step [{s}/600], Loss: {x}\n",
    "lightning": lambda s, x: (
        f"\rEpoch 0:  {s // 9}%|█         | {s}/938 [00:01<00:12, 69.31it/s, v_num=0, train_loss={x}]"
    ),
    "notebook": lambda s, x: ("Step\tTraining Loss\n" if s == 10 else "") + f"{s}\t{x}\n",
    "internevo": lambda s, x: (
        f"2023-07-07 12:29:16,994 INFO train.py:323 in record_current_batch_training_metrics -- tflops=189.3,step={s},loss={x},tgs (tokens/gpu/second)=4098.79,lr=1.2e-06,loss_scale=65536.0,grad_norm=63.67,micro_num=4,num_consumed_tokens={s * 4096}\n"
    ),
    "levanter": lambda s, x: (
        f"2025-01-01T10:00:00 - 0 - levanter.callbacks - tqdm_logging.py:78 - INFO :: Progress on:train {s}it/10.0kit rate:1.2it/s remaining:2:00:00 elapsed:00:01 postfix:loss={x}\n"
    ),
    "espnet": lambda s, x: (
        f"[gpu01] 2021-05-01 12:00:00,123 (trainer:672) INFO: 1epoch:train:{s - 9}-{s}batch: iter_time=0.1, forward_time=0.2, loss_ctc=100.1, loss_att=50.2, acc=0.1, loss={x}, backward_time=0.2, optim0_lr0=1e-08, train_time=1.2\n"
    ),
    "mxnet": lambda s, x: (
        f"INFO:root:Epoch[0] Batch [{s}]\tSpeed: 1000.0 samples/sec\taccuracy=0.1\tcross-entropy={x}\n"
    ),
    "tianshou": lambda s, x: (
        f"\rEpoch #1: {s}it [00:05, 1800.1it/s, env_step={s}, len=200, loss={x}, n/ep=0, n/st=10, rew=200.00]"
    ),
    "mmengine": lambda s, x: (
        f"2023/05/01 12:00:00 - mmengine - INFO - Epoch(train)  [1][ {s}/391]  lr: 1.0000e-02  eta: 0:10:00  time: 0.1000  data_time: 0.0100  memory: 1000  loss: {x}\n"
    ),
    "mmdet": lambda s, x: (
        f"2021-05-01 12:00:00,123 - mmdet - INFO - Epoch [1][{s}/7330]\tlr: 1.978e-03, eta: 1 day, 4:00:00, time: 0.200, data_time: 0.05, memory: 3000, loss_rpn_cls: 0.5, loss_bbox: 0.1, acc: 90.1, loss: {x}\n"
    ),
    "mmcv iter": lambda s, x: (
        f"2021-05-01 12:00:00,123 - mmseg - INFO - Iter [{s}/160000]\tlr: 1.0e-02, eta: 20:00:00, time: 0.45, decode.loss_ce: 2.0, decode.acc_seg: 10.0, aux.loss_ce: 0.8, loss: {x}\n"
    ),
    "diffusers": lambda s, x: (
        f"\rSteps:   1%|          | {s}/1000 [00:10<16:00,  1.03it/s, lr=0.0001, step_loss={x}]"
    ),
    "paddle": lambda s, x: (
        f"[2022-05-01 12:00:00,123] [    INFO] - global step {s}, epoch: 1, batch: {s}, loss: {x}, speed: 2.01 step/s\n"
    ),
    "ppdet": lambda s, x: (
        f"[05/01 12:00:00] ppdet.engine INFO: Epoch: [0] [ {s}/1000] learning_rate: 0.000100 loss: {x} eta: 0:10:00 batch_cost: 0.1010 data_cost: 0.0100 ips: 20.1 images/s\n"
    ),
    "fastai": lambda s, x: (
        ("epoch     train_loss  valid_loss  accuracy  time    \n" if s == 10 else "")
        + f"{s}         {x}  0.500000    0.800000  00:10     \n"
    ),
    "xgboost": lambda s, x: f"[{s}]\ttrain-logloss:{x}\teval-logloss:0.62\n",
    "allennlp": lambda s, x: (
        f"\raccuracy: 0.5000, loss: {x} ||:  10%|#         | {s}/100 [00:01<00:09,  9.90it/s]"
    ),
    "flair": lambda s, x: (
        f"2021-05-01 12:00:00,123 epoch 1 - iter {s}/100 - loss {x} - time (sec): 1.20 - samples/sec: 300.10 - lr: 0.100000\n"
    ),
    "word_lm": lambda s, x: (
        f"| epoch   1 |   {s}/ 2983 batches | lr 20.00 | ms/batch 10.10 | loss  {x} | ppl  2055.20\n"
    ),
    "mingpt": lambda s, x: f"iter_dt 100.00ms; iter {s}: train loss {x}\n",
    "flax": lambda s, x: f"train epoch: {s}, loss: {x}, accuracy: 90.10\n",
    "slash": lambda s, x: f"[{s}/100] train_loss: {x}, val_loss: 0.6\n",
    "speechbrain": lambda s, x: (
        f"epoch: {s}, lr: 1.00e+00 - train loss: {x} - valid loss: 3.00, valid CER: 20.10\n"
    ),
    "loguru": lambda s, x: (
        f"2025-01-02 10:00:00.123 | INFO     | __main__:train:123 - step={s} loss={x} lr=1.0e-04\n"
    ),
    "tinygrad": lambda s, x: (
        f"{s:5d} 100.20 ms run,   12.10 ms python,  {x} loss, 0.00100 LR, 1.20 GB used\n"
    ),
    "open_clip": lambda s, x: (
        f"2023-01-01,12:00:00 | INFO | Train Epoch: 0 [ {s * 512}/1000000 (1%)] Data (t): 0.010 Batch (t): 0.200, 2560.0/s, 320.0/s/gpu LR: 0.000100 Logit Scale: 14.286 Contrastive_loss: {x} ({x}) Loss: {x} ({x})\n"
    ),
    "dino": lambda s, x: (
        f"Epoch: [0/100]  [ {s}/1000]  eta: 0:10:00  loss: {x} ({x})  lr: 0.000010 (0.000005)  wd: 0.0400 (0.0400)  time: 0.5  data: 0.01  max mem: 10000\n"
    ),
    "trainer pipe": lambda s, x: (
        f"(TrainWorker pid=1234, ip=10.0.0.1) step {s}: loss={x}, ppl=100.2\n"
    ),
    "composer": lambda s, x: (
        f"[batch={s}/1000]:\n\t Train time/batch: {s}\n\t Train time/sample: {s * 8}\n\t Train loss/train/total: {x}\n\t Train metrics/train/LanguagePerplexity: 1400.2\n"
    ),
    "nnunet": lambda s, x: (
        f"2023-05-01 12:00:00.123456: Epoch {s}\n2023-05-01 12:00:00.123456: Current learning rate: 0.01\n2023-05-01 12:01:00.123456: train_loss {x}\n2023-05-01 12:01:00.123456: val_loss -0.2\n2023-05-01 12:01:00.123456: Epoch time: 60.1 s\n"
    ),
    "pytorch quickstart": lambda s, x: f"loss: {x}  [ {s}/60000]\n",
    "mnist": lambda s, x: f"Train Epoch: 1 [{s}/60000 (1%)]\tLoss: {x}\n",
    "colossal": lambda s, x: f"[Epoch 0/3] Step {s}/1000, loss: {x}, lr: 0.0001\n",
    "openrlhf": lambda s, x: (
        f"\rTrain epoch [1/1]:  10%|█         | {s}/100 [00:10<01:30,  1.0s/it, gpt_loss={x}, loss_mean=7.0]"
    ),
    "deepspeed": lambda s, x: (
        f"[2023-04-18 01:51:57,504] [INFO] [engine.py:100:train_batch] [Rank 0] global_step: {s}, lm loss: {x}, lr: 0.0001\n"
    ),
    "fabric": lambda s, x: f"iter {s}: loss {x}, time: 123.45ms\n",
    "gpt-fast": lambda s, x: (
        f"train | step {s:6d} | tokens {s * 1000:,} | loss {x} | ppl 1234.5 | lr 1.0e-04 | 123,456 tok/s\n"
    ),
    "keras": lambda s, x: (
        f"Epoch {s}/60\n100/100 [==============================] - 5s 50ms/step - loss: {x} - accuracy: 0.1 - val_loss: 2.0\n"
    ),
    "zh": lambda s, x: f"步数：{s}，损失 loss：{x}，学习率 lr：0.001\n",
    "arrow": lambda s, x: f"iteration {s} -> loss = {x}\n",
    "pretty table": lambda s, x: (
        ("| step | train loss | val loss |\n|------|------------|----------|\n" if s == 10 else "")
        + f"| {s} | {x} | 2.0 |\n"
    ),
    "tensor": lambda s, x: (
        f"step {s} loss tensor({x}, device='cuda:0', grad_fn=<NllLossBackward0>)\n"
    ),
    "json nested": lambda s, x: (
        f'INFO {{"step": {s}, "train": {{"loss": {x}, "lr": 0.1}}, "eval": {{"loss": 1.0}}}}\n'
    ),
    "sec first": lambda s, x: f"12.3s - {s} steps - loss {x}\n",
    "gnn": lambda s, x: (
        f"Epoch: {s:03d}, Loss: {x:.4f}, Train: 0.9000, Val: 0.8000, Test: 0.8100\n"
    ),
    "icefall": lambda s, x: (
        f"2022-05-01 12:00:00,123 INFO [train.py:812] (0/8) Epoch 0, batch {s}, loss[loss={x}, simple_loss=2.3, pruned_loss=7.0, over 7184.00 frames. ], tot_loss[loss=6.4, simple_loss=2.6, pruned_loss=6.0, over 327000.00 frames. ], batch size: 29, lr: 3.00e-03\n"
    ),
    "fasttext": lambda s, x: (
        f"\rProgress:  {s}.0% words/sec/thread:   50000 lr:  0.045 avg.loss:  {x} ETA:   0h 1m"
    ),
    "keras2": lambda s, x: (
        f"Epoch {s}/60\n1875/1875 - 3s - loss: {x} - accuracy: 0.9134 - 3s/epoch - 2ms/step\n"
    ),
    "tfod": lambda s, x: (
        f"INFO:tensorflow:Step {s} per-step time 0.512s\nI0501 12:00:00.123456 140 model_lib_v2.py:705] Step {s} per-step time 0.512s\nINFO:tensorflow:{{'Loss/classification_loss': 0.5,\n 'Loss/localization_loss': 0.25,\n 'Loss/total_loss': {x},\n 'learning_rate': 0.04}}\n"
    ),
    "t2t": lambda s, x: f"INFO:tensorflow:loss = {x}, step = {s} (12.345 sec)\n",
    "ignite": lambda s, x: f"Epoch[1] Iteration[{s}/938] Loss: {x}\n",
    "catalyst": lambda s, x: f"{s}/100 * Epoch (train): loss: {x} | lr: 0.001\n",
    "skorch": lambda s, x: (
        (
            "  epoch    train_loss    valid_acc    valid_loss     dur\n-------  ------------  -----------  ------------  ------\n"
            if s == 10
            else ""
        )
        + f"     {s}        {x}       0.5000        0.6931  0.1000\n"
    ),
    "pprint": lambda s, x: (
        f"{{'accuracy': 0.1,\n 'learning_rate': 0.001,\n 'loss': {x},\n 'step': {s}}}\n"
    ),
    "pax": lambda s, x: (
        f"I0501 12:00:00.123456 140 programs.py:400] [PAX STATUS]: step_i: {s}, training loss: {x}\n"
    ),
    "llamacpp": lambda s, x: (
        f"train_opt_callback: iter=    {s} sample=11/100 sched=0.100000 loss={x} dt=00:00:12 eta=00:10:00 |->\n"
    ),
    "candle": lambda s, x: f"epoch {s} train loss: {x} test acc: 90.10%\n",
    "yolox": lambda s, x: (
        f"2021-08-01 12:00:00 | INFO     | yolox.core.trainer:257 - epoch: 1/300, iter: {s}/925, mem: 5000Mb, iter_time: 0.501s, data_time: 0.001s, total_loss: {x}, iou_loss: 3.0, l1_loss: 0.0, conf_loss: 3.0, cls_loss: 1.25, lr: 1.000e-05, size: 640, ETA: 1 day, 2:00:00\n"
    ),
    "ppocr": lambda s, x: (
        f"[2021/05/01 12:00:00] ppocr INFO: epoch: [1/500], global_step: {s}, lr: 0.001000, loss: {x}, acc: 0.0, avg_reader_cost: 0.1 s, avg_batch_cost: 0.5 s, avg_samples: 64.0, ips: 120.1 samples/s, eta: 1:00:00\n"
    ),
    "pandas": lambda s, x: (
        ("   step  loss     lr\n" if s == 10 else "") + f"{s // 10 - 1}    {s}  {x}  0.001\n"
    ),
    "structlog": lambda s, x: (
        f"2025-01-02 10:00:00 [info     ] train_step                     loss={x} lr=0.001 step={s}\n"
    ),
    "logfmt": lambda s, x: (
        f'time="2025-01-02T10:00:00Z" level=info msg="train" step={s} loss={x}\n'
    ),
    "yaml": lambda s, x: f"- step: {s}\n  loss: {x}\n  lr: 0.001\n",
    "json pretty": lambda s, x: f'{{\n  "step": {s},\n  "loss": {x},\n  "lr": 0.1\n}}\n',
    "time": lambda s, x: f"Iteration: {s} | Loss: {x} | Time: 0:00:{s}\n",
    "step and average": lambda s, x: f"[Step {s}] Loss = {x} (avg 7.3)\n",
    "brackets": lambda s, x: f"Step: [{s}/1000] Loss: {x}\n",
    "tf tutorial": lambda s, x: f"Epoch 1 Batch {s} Loss {x}\n",
    "frac": lambda s, x: f"{s}/1000: loss={x}\n",
    "karpathy": lambda s, x: f"iter {s}/1000 | train loss {x} | val loss 6.0 |\n",
    "paren": lambda s, x: f"(epoch: 1, iters: {s}, time: 0.1) loss: {x}\n",
    "at step": lambda s, x: f"loss {x} at step {s}\n",
    "sentence": lambda s, x: f"At step {s}, the loss is {x}\n",
    "keras guide": lambda s, x: f"Training loss (for one batch) at step {s}: {x}\n",
    "colon": lambda s, x: f"training loss at step {s}: {x}\n",
    "hf bar": lambda s, x: (
        f"\r  1%|▏         | {s}/1000 [00:10<10:00,  1.00s/it]\n                                      \n\r{{'loss': {x}, 'learning_rate': 1e-05, 'epoch': 0.1}}\n"
    ),
    "hf bar glued": lambda s, x: (
        f"  1%|▏         | {s}/1000 [00:10<10:00,  1.00s/it]{{'loss': {x}, 'learning_rate': 1e-05, 'epoch': 0.1}}\n"
    ),
    "unsloth": lambda s, x: (
        f"{{'loss': {x}, 'grad_norm': 0.5, 'learning_rate': 0.0002, 'epoch': {s}.0}}\n"
    ),
    "gluon": lambda s, x: (
        f"[Epoch 0 Batch {s}/1000] loss={x}, lr=0.0001, metrics:accuracy:0.5000\n"
    ),
    "stanza": lambda s, x: (
        f"2021-05-01 12:00:00: step {s}/50000, loss = {x} (0.123 sec/batch), lr: 0.003000\n"
    ),
    "opennmt tf": lambda s, x: (
        f"2021-05-01 12:00:00.123000: I training.py:176] Step = {s} ; steps/s = 1.23, source words/s = 1234, target words/s = 1234 ; Learning rate = 0.000012 ; Loss = {x}\n"
    ),
    "joey": lambda s, x: (
        f"2021-05-01 12:00:00,123 - INFO - joeynmt.training - Epoch   1, Step:      {s}, Batch Loss:     {x}, Batch Acc: 0.1, Tokens per Sec:     1234, Lr: 0.000300\n"
    ),
    "sockeye": lambda s, x: (
        f"[2021-05-01:12:00:00:INFO:sockeye.training:log] Epoch[0] Batch [{s}]\tSpeed: 1234.56 samples/sec 12345.67 tokens/sec 1.23 updates/sec\tcross-entropy={x} perplexity=900.1\n"
    ),
    "alpaca lora": lambda s, x: f"{{'train_runtime': 1.2}}\n{{'loss': {x}, 'step': {s}}}\n",
    "hydra": lambda s, x: (
        f"[2021-05-01 12:00:00,123][__main__][INFO] - step {s} | train/loss: {x} | train/acc: 0.1\n"
    ),
    "vissl": lambda s, x: (
        f"INFO 2021-05-01 12:00:00,123 log_hooks.py: 189: Rank: 0; [ep: 0] iter: {s}; lr: 0.3; loss: {x}; btime(ms): 500; eta: 1:00:00; peak_mem(M): 10000;\n"
    ),
    "slowfast": lambda s, x: (
        f'[05/01 12:00:00][INFO] logging.py:  97: json_stats: {{"_type": "train_iter", "dt": 0.5, "epoch": "1/100", "eta": "1:00:00", "gpu_mem": "10.1G", "iter": "{s}/1000", "loss": {x}, "lr": 0.1}}\n'
    ),
    "mdl": lambda s, x: (
        f"   {s} | {x} | 0.001 | 12.1\n"
        if s > 10
        else f"  it |  loss | lr | sec\n-----+------+----+---\n   {s} | {x} | 0.001 | 12.1\n"
    ),
    "cifar tutorial": lambda s, x: f"[1, {s:5d}] loss: {x}\n",
    "crnn": lambda s, x: f"2021-05-01 12:00:00,123 [1/25][{s}/1000] Train Loss: {x}\n",
    "dalle": lambda s, x: f"0 {s} loss - {x}\n0 {s} sample_per_sec - 3.25\n",
    "wenet": lambda s, x: (
        f"2021-05-01 12:00:00,123 DEBUG TRAIN Batch 0/{s} loss {x} loss_att 5.5 loss_ctc 9.25 lr 0.001 rank 0\n"
    ),
    "tacotron": lambda s, x: f"Train loss {s} {x:.6f} Grad Norm 1.250000 2.50s/it\n",
    "cellpose": lambda s, x: (
        f"2021-05-01 12:00:00,123 [INFO] {s}, train_loss={x}, test_loss=8.5, LR=0.2, time 12.31s\n"
    ),
    "catalyst epochs": lambda s, x: (
        f"* Epoch {s}/60\ntrain ({s}/60) acc: 0.5 | loss: {x} | lr: 0.1\nvalid ({s}/60) acc: 0.5 | loss: 8.5 | lr: 0.1\n"
    ),
    "phases": lambda s, x: (
        f"Epoch {s}/60 took 12.31s\n  Train: 10.5s - 300 batches - Loss: {x}\n  Val: 2.5s - Loss: 8.5\n"
    ),
    "two in one": lambda s, x: f"Iter | [{s:3d}/60] train/val loss={x}/8.5, miou=0.312\n",
    "total": lambda s, x: f"Iter {s:04d}: total={x}, BCE={x - 1}, IoU=1.0\n",
    "kair": lambda s, x: (
        f"21-05-01 12:00:00.123 : <epoch:  0, iter: {s * 100:7,d}, lr:1.000e-04> G_loss: {x:.3e} \n"
    ),
    "matconvnet": lambda s, x: (
        f"train: epoch 01: {s:3d}/391: 512.1 (500.1) Hz objective: {x} top1err: 0.900 top5err: 0.500\n"
    ),
    "megengine": lambda s, x: f"TRAIN e0 {s}/1000 0.51s/it  loss=({x}) lr=0.0125 acc1=(0.5)\n",
    "style transfer": lambda s, x: (
        f"Iteration {s} / 100\n  Content 1 loss: 9.5\n  Style 1 loss: 5.5\n  Style 2 loss: 4.5\n  Total loss: {x}\n"
    ),
    "yolo metrics": lambda s, x: (
        f"---- [Epoch 0/9, Batch {s}/99] ----\n| Metrics | Layer 0 | Layer 1 |\n| loss    | 1.25    | 2.25    |\nTotal loss {x}\n"
    ),
    "chinese": lambda s, x: f"第{s}轮, 训练损失: {x}, 验证损失: 8.5, 准确率: 0.5\n",
}

NOT_BY_PRINTED_STEP = {"hf", "hf5", "fasttext"}
"""Trainers whose line has no step: its records are counted."""

MULTIPLES = {"open_clip": 512, "kair": 100}
"""What a printed count is a multiple of."""
