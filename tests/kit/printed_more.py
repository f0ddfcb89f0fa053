# ruff: noqa: E501  (the lines are as trainers print them)
"""More of what trainers print, and what is not to be guessed: texts that were labelled before they were read.

Every entry prints the run of `printed`: a loss at each of six steps.
"""

from tests.kit.printed import Printed

MORE_BY_STEP: dict[str, Printed] = {
    "fairseq2": lambda s, x: (
        f"2024-05-01 12:00:00,123 INFO fairseq2.metrics.recorders._log - Train Metrics (step {s}) - NLL Loss: {x} | Loss Scale: 128 | Gradient Norm: 1.25 | Learning Rate: 1e-05 | Batch Size: 512 | Elapsed Time: 12s | Wall Time: 34s\n"
    ),
    "coqui": lambda s, x: (
        f"\n   --> TIME: 2022-05-01 12:00:00 -- STEP: {s}/406 -- GLOBAL_STEP: {s}\n     | > decoder_loss: 34.5  (35.1)\n     | > postnet_loss: 36.5  (37.1)\n     | > loss: {x}  (7.3)\n     | > grad_norm: 1.2  (1.1)\n     | > current_lr: 0.0001 \n     | > step_time: 0.5123  (0.4981)\n     | > loader_time: 0.0021  (0.0020)\n\n"
    ),
    "rwkv": lambda s, x: (
        f"\rEpoch 0:   1%|          | {s}/1000 [00:10<10:00,  1.00it/s, loss={x}, lr=0.0006, REAL it/s=1.200, Kt/s=40.90]"
    ),
    "vq trainer": lambda s, x: f"{s}: loss: {x}\n",
    "soundstream": lambda s, x: (
        f"{s}: soundstream total loss: {x}, soundstream recon loss: 3.412 | discr (scale 1) loss: 1.200 | discr (scale 0.5) loss: 1.100\n"
    ),
    "diffusion-pytorch": lambda s, x: (
        f"\rloss: {x}:   1%|          | {s}/700000 [00:10<99:00:00,  1.96it/s]"
    ),
    "k-diffusion": lambda s, x: f"Epoch: 0, step: {s}, loss: {x}\n",
    "nemo-rl": lambda s, x: (
        f"========================= Step {s}/100 =========================\n▶ Preparing batch...\n▶ Generating responses for batch of size 32...\n\n📊 Training Results:\n  • Loss: {x}\n  • Generation KL Error: 0.0012\n  • Avg Reward: 0.2310\n  • Mean Generation Length: 512.1250\n\n⏱️  Timing:\n  • Total step time: 12.31s\n  • generation: 5.12s (41.6%)\n"
    ),
    "openrlhf ppo": lambda s, x: (
        f"\rEpisode [1/20]:  10%|█         | {s}/100 [10:10<90:10, 61.0s/it, policy_loss={x}, kl=0.0123, act_lr=5e-07, critic_loss=0.412, reward=0.231, return=0.2, response_length=512.5]"
    ),
    "slime": lambda s, x: (
        f"(MegatronTrainRayActor pid=1234, ip=10.0.0.1) [2025-07-01 12:00:00] model.py:451 - step {s}: {{'train/loss': {x}, 'train/pg_loss': 0.0012, 'train/entropy_loss': 0.31, 'train/pg_clipfrac': 0.0, 'train/ppo_kl': 0.0, 'train/grad_norm': 0.25, 'train/lr-pg_0': 1e-06, 'train/step': {s}}}\n"
    ),
    "sb3 sac": lambda s, x: (
        f"---------------------------------\n| rollout/           |          |\n|    ep_len_mean     | 200      |\n|    ep_rew_mean     | -1.2e+03 |\n| time/              |          |\n|    episodes        | 4        |\n|    fps             | 120      |\n|    total_timesteps | {s}      |\n| train/             |          |\n|    actor_loss      | {x}      |\n|    critic_loss     | 0.12     |\n|    ent_coef        | 0.8      |\n|    ent_coef_loss   | -0.3     |\n|    learning_rate   | 0.0003   |\n|    n_updates       | {s + 99} |\n---------------------------------\n"
    ),
    "flashlight": lambda s, x: (
        f"I0501 12:00:00.123456  1234 Train.cpp:345] epoch:        1 | nupdates:         {s} | lr: 0.400000 | lrcriterion: 0.000000 | runtime: 00:01:10 | bch(ms): 100.10 | smp(ms): 1.10 | fwd(ms): 30.12 | crit-fwd(ms): 1.20 | bwd(ms): 60.10 | optim(ms): 10.10 | loss:   {x} | train-TER: 90.10 | train-WER: 99.10 | dev-clean-loss:   6.50000 | dev-clean-TER: 88.10 | avg-isz: 1200 | avg-tsz: 200 | max-tsz: 300 | hrs:   10.10 | thrpt(sec/sec): 500.10\n"
    ),
    "orbit": lambda s, x: (
        f"train | step: {s:6d} | steps/sec:    1.2 | output: \n    {{'learning_rate': 0.1,\n     'training_loss': {x}}}\n"
    ),
    "slim": lambda s, x: f"INFO:tensorflow:global step {s}: loss = {x} (0.123 sec/step)\n",
    "tensorpack": lambda s, x: (
        f"[0501 12:00:00 @base.py:275] Start Epoch {s // 10} ...\n[0501 12:00:10 @base.py:285] Epoch {s // 10} (global_step {s}) finished, time:12.3 seconds.\n[0501 12:00:11 @monitor.py:467] QueueInput/queue_size: 50\n[0501 12:00:11 @monitor.py:467] accuracy: 0.91\n[0501 12:00:11 @monitor.py:467] train-cost: {x}\n[0501 12:00:11 @monitor.py:467] validation_cost: 6.1\n"
    ),
    "dgl": lambda s, x: (
        f"Epoch {s:05d} | Time(s) 0.1234 | Loss {x:.4f} | Accuracy 0.5000 | ETputs(KTEPS) 123.45\n"
    ),
    "ogb": lambda s, x: (
        f"Run: 01, Epoch: {s:02d}, Loss: {x:.4f}, Train: 50.00%, Valid: 49.00% Test: 48.00%\n"
    ),
    "scvi": lambda s, x: (
        f"\rEpoch {s}/400:   2%|▏         | {s}/400 [00:10<06:10,  1.05it/s, v_num=1, train_loss_step={x}, train_loss_epoch=7.3]"
    ),
    "simpletransformers": lambda s, x: (
        f"\rEpochs 0/1. Running Loss:   {x}:   1%|          | {s}/1000 [00:10<10:00,  1.00it/s]"
    ),
    "darknet": lambda s, x: (
        f"\n {s}: {x + 0.5:.6f}, {x:.6f} avg loss, 0.000010 rate, 3.123456 seconds, {s * 64} images, 10.123456 hours left\nLoaded: 0.000050 seconds\n"
    ),
    "easyocr": lambda s, x: (
        f"[{s}/300000] Train loss: {x:.5f}, Valid loss: 6.50000, Elapsed_time: 12.34567\n"
    ),
    "nerf": lambda s, x: f"[TRAIN] Iter: {s} Loss: {x}  PSNR: 12.345678901672363\n",
    "gaussian splatting": lambda s, x: (
        f"\rTraining progress:   1%|          | {s}/30000 [00:10<1:10:00,  7.00it/s, Loss={x:.7f}, Depth Loss=0.0000000]"
    ),
    "torch-ngp": lambda s, x: (
        f"\rloss={x:.4f} (7.3000), lr=0.010000:   1%|  1% {s}/1000 [00:10<10:00,  1.00it/s]"
    ),
    "guided-diffusion": lambda s, x: (
        f"--------------------------\n| grad_norm  | 0.512    |\n| loss       | {x}     |\n| loss_q0    | 9.12     |\n| loss_q1    | 5.12     |\n| loss_q2    | 3.12     |\n| mse        | 0.1      |\n| param_norm | 300      |\n| samples    | {s * 8}  |\n| step       | {s}      |\n--------------------------\n"
    ),
    "fastpitch": lambda s, x: (
        f"DLL 2021-05-01 12:00:00.123456 - epoch    1 | iter   {s}/100 | loss  {x} | mel loss  3.10 | kl loss  0.10 | kl weight  0.10 | 1234.5 frames/s | took 1.23 s | lrate 1.00e-01\n"
    ),
    "hifigan": lambda s, x: (
        f"Steps : {s}, Gen Loss Total : {x:4.3f}, Mel-Spec. Error : 0.300, s/b : 0.400\n"
    ),
    "d3rlpy": lambda s, x: (
        f"2024-05-01 12:00:00 [info     ] DoubleDQN_20240501120000: epoch={s // 10} step={s} epoch={s // 10} metrics={{'time_sample_batch': 0.0012, 'time_algorithm_update': 0.0034, 'loss': {x}, 'time_step': 0.005}} step={s}\n"
    ),
    "jaxline": lambda s, x: (
        f"I0501 12:00:00.123456 140735 train.py:100] global_step: {s}, steps_per_sec: 1.23, learning_rate: 0.001, train_loss: {x}\n"
    ),
    "big_vision": lambda s, x: (
        f"I0501 12:00:00.123456 140735 utils.py:1012] \x1b[35mNOTE\x1b[0m: Steps:{s}/90000 [0.0%]\nI0501 12:00:00.123456 140735 utils.py:1200] [{s}] global_schedule = 0.01\nI0501 12:00:00.123456 140735 utils.py:1200] [{s}] training_loss = {x}\nI0501 12:00:00.123456 140735 utils.py:1200] [{s}] l2_params = 120.5\n"
    ),
    "trax": lambda s, x: (
        f"\nStep    {s:4d}: Ran 10 train steps in 1.23 secs\nStep    {s:4d}: train CrossEntropyLoss |  {x:.8f}\nStep    {s:4d}: eval  CrossEntropyLoss |  6.50000000\nStep    {s:4d}: eval          Accuracy |  0.10000000\n"
    ),
    "paddlenlp": lambda s, x: (
        f"\x1b[32m[2023-05-01 12:00:00,123] [    INFO]\x1b[0m - loss: {x}, learning_rate: 1e-05, global_step: {s}, current_memory_allocated: 12.1, max_memory_allocated: 20.1, interval_runtime: 1.2, interval_samples_per_second: 12.1, interval_steps_per_second: 0.8, ppl: 1400.5, progress_or_epoch: 0.01\x1b[0m\n"
    ),
    "bigdl": lambda s, x: (
        f"2018-05-01 12:00:00 INFO  DistriOptimizer$:408 - [Epoch 1 {s * 64}/60000][Iteration {s}][Wall Clock 12.345s] Trained 64.0 records in 0.123 seconds. Throughput is 520.3 records/second. Loss is {x}. Sequential's hyper parameters: Current learning rate is 0.01. Current dampening is 1.7976931348623157E308.\n"
    ),
    "cntk": lambda s, x: (
        f" Minibatch[{s - 9:4d}-{s:4d}]: loss = {x:.6f} * 640, metric = 90.00% * 640;\n"
    ),
    "fb.resnet.torch": lambda s, x: (
        f" | Epoch: [1][{s}/5004]    Time 0.123  Data 0.001  Err {x:1.4f}  top1  99.000  top5  95.000\n"
    ),
    "chainer": lambda s, x: (
        ("epoch       iteration   main/loss   main/accuracy  elapsed_time\n" if s == 10 else "")
        + f"\x1b[J1           {s:<10}  {x:<10}  0.5            12.3456       \n"
    ),
    "julia": lambda s, x: f"┌ Info: training\n│   iter = {s}\n│   loss = {x}\n└   η = 0.001\n",
    "deepspeech": lambda s, x: (
        f"\rEpoch 0 |   Training | Elapsed Time: 0:00:{s} | Steps: {s} | Loss: {x:.6f}"
    ),
    "tabnet": lambda s, x: (
        f"epoch {s:<3}| loss: {x:.5f} | train_auc: 0.51000 | valid_auc: 0.50000 |  0:00:02s\n"
    ),
    "torchtuples": lambda s, x: f"{s}:\t[0s / 0s],\t\ttrain_loss: {x:.4f},\tval_loss: 6.9000\n",
    "pykeen": lambda s, x: (
        f"\rTraining epochs on cpu:  10%|█         | {s}/100 [00:10<01:30,  1.00s/epoch, loss={x}, prev_loss=7.3]"
    ),
    "open-sora": lambda s, x: (
        f"\rEpoch 0:   1%|          | {s}/1000 [00:10<10:00,  1.00s/it, loss={x}, step={s}, global_step={s}]"
    ),
    "dit": lambda s, x: (
        f"[\x1b[34m2023-05-01 12:00:00\x1b[0m] (step={s:07d}) Train Loss: {x:.4f}, Train Steps/Sec: 1.23\n"
    ),
    "swin": lambda s, x: (
        f"[2021-05-01 12:00:00 swin_tiny_patch4_window7_224](main.py 212): INFO Train: [0/300][{s}/1251]\teta 1:02:03 lr 0.000001\t wd 0.0500\ttime 0.5123 (0.6123)\tloss {x:.4f} (7.3000)\tgrad_norm 1.2345 (inf)\tloss_scale 65536.0000 (65536.0000)\tmem 12345MB\n"
    ),
    "detr": lambda s, x: (
        f"Epoch: [0]  [ {s:5d}/14786]  eta: 3:02:03  lr: 0.000100  class_error: 90.12 (91.00)  loss: {x:.4f} (7.3000)  loss_ce: 1.2000 (1.1000)  loss_bbox: 1.5000 (1.6000)  loss_giou: 1.1000 (1.2000)  loss_ce_0: 1.2 (1.2)  time: 0.5123  data: 0.0100  max mem: 5000\n"
    ),
    "sam2": lambda s, x: (
        f"INFO 2024-05-01 12:00:00,123 train_utils.py: 271: Train Epoch: [0][{s:3d}/100] | Batch Time: 1.20 (1.30) | Data Time: 0.10 (0.12) | Mem (GB): 10.00 (10.10/12.00) | Time Elapsed: 00d 00h 01m | Losses/train_all_loss: {x:.2e} (7.30e+00)\n"
    ),
    "prime-rl": lambda s, x: (
        f"12:00:00 \x1b[32mSUCCESS\x1b[0m Step {s} | Time: 12.31s | Loss: {x:.4f} | Entropy: 0.3012 | Mismatch KL: 0.0012 | Grad. Norm: 0.1234 | LR: 1.00e-06 | Throughput: 12345 tokens/s | MFU: 12.3% | Peak Mem.: 12.3 GiB\n"
    ),
    "lingua": lambda s, x: (
        f"0: INFO    24-10-01 12:00:00.123456 - 0:01:10 - step: {s}  acc: 0  loss: {x:>7}  grad: 1.20e+00  flops: 1.21e+14  wps: 1.21e+04  iter: 0.5123  data: 0.0012  lr: 1.00e-03  mem: 50%  pow: 300.12 W\n"
    ),
    "fms-fsdp": lambda s, x: (
        f"step: {s}\nloss: {x}\nLR: 0.0003\ntokens seen: {s * 131072}\ngradient norm: 1.2\nreserved memory: 12345678\nallocated memory: 2345678\ncurrent step time: 1.2\noverall step time: 1.3\ncurrent token per gpu per sec: 12000\n\n"
    ),
    "picotron": lambda s, x: (
        f"[rank 0] Step: {s:<5d} | Loss: {x:6.4f} | Global batch size:  64.00K | Tokens/s:  12.10K | Tokens/s/GPU:   1.50K | Tokens:   1.20M | MFU: 40.10% | Memory usage:  12.30GB\n"
    ),
    "llama-recipes": lambda s, x: (
        f"\rTraining Epoch: 1/3, step {s}/100 completed (loss: {x}):   1%|\x1b[34m▏         \x1b[0m| {s}/100 [00:10<01:30,  1.00s/it]"
    ),
    "areal": lambda s, x: (
        f"20250701-12:00:00.123 StatsLogger INFO: Epoch 1/10 Step {s}/1000 Train step {s}/10000 done.\n20250701-12:00:00.123 StatsLogger INFO: Stats:\n╭──────────────────────────┬────────────╮\n│ ppo_actor/actor_loss/avg │ {x:>10} │\n│ ppo_actor/entropy/avg    │ 3.1234e-01 │\n│ ppo_actor/grad_norm      │ 1.2000e-01 │\n│ ppo_actor/lr             │ 1.0000e-06 │\n╰──────────────────────────┴────────────╯\n"
    ),
    "easydel": lambda s, x: (
        f"\rtraining process:   1%|          | {s}/1000 [00:10<10:00,  1.00it/s, loss={x}, mean_loss=7.3, accuracy=0.1, learning_rate=1e-05, step={s}]"
    ),
    "grpo notebook": lambda s, x: (
        ("Step\tTraining Loss\treward\treward_std\tcompletion_length\tkl\n" if s == 10 else "")
        + f"{s}\t{x}\t0.125000\t0.250000\t187.500000\t0.001200\n"
    ),
    "rsl_rl": lambda s, x: (
        f"Learning iteration {s}/1500\n\n  Mean value loss: 0.4100\n  Mean surrogate loss: {x}\n  Mean entropy loss: 17.0200\n  Mean reward: -3.10\n  Mean episode length: 22.40\n---\n"
    ),
    "peft": lambda s, x: (
        f"epoch={s}: train_ppl=tensor(1408.1, device='cuda:0') train_epoch_loss=tensor({x}, device='cuda:0') eval_ppl=tensor(1300.5, device='cuda:0') eval_epoch_loss=tensor(6.5, device='cuda:0')\n"
    ),
    "time sequence": lambda s, x: f"STEP:  {s}\nloss: {x}\ntest loss: 6.5\n",
    "vae": lambda s, x: (
        f"Train Epoch: 1 [{s}/60000 (1%)]\tLoss: {x:.6f}\n"
        + ("====> Epoch: 1 Average loss: 7.3000\n====> Test set loss: 6.5000\n" if s == 60 else "")
    ),
    "neural style": lambda s, x: (
        f"Mon May  1 12:00:00 2023\tEpoch 1:\t[{s}/1000]\tcontent: 3.000000\tstyle: {x - 3:.6f}\ttotal: {x:.6f}\n"
    ),
    "flax clm": lambda s, x: (
        f"Step... ({s} | Loss: {x}, Learning Rate: 0.001)\n"
        + ("Epoch... (1/3 | Loss: 6.5, Perplexity: 665.1)\n" if s == 60 else "")
    ),
    "monai": lambda s, x: (
        f"{s}/100, train_loss: {x:.4f}\n" + ("epoch 1 average loss: 7.3000\n" if s == 60 else "")
    ),
    "transunet": lambda s, x: f"[12:00:00.123] iteration {s} : loss : {x:.6f}, loss_ce: 3.100000\n",
    "monodepth": lambda s, x: (
        f"epoch   0 | batch {s:6d} | examples/s:  12.3 | loss: {x:.5f} | time elapsed: 00h01m10s | time left: 10h00m00s\n"
    ),
    "pointnet": lambda s, x: (
        f"2021-05-01 12:00:00,123 - Model - INFO - **** Epoch {s} ({s}/200) ****\n2021-05-01 12:00:00,123 - Model - INFO - Learning rate:0.001000\n2021-05-01 12:00:00,123 - Model - INFO - Training mean loss: {x:.6f}\n2021-05-01 12:00:00,123 - Model - INFO - Training accuracy: 0.512345\n2021-05-01 12:00:00,123 - Model - INFO - eval mean loss: 6.500000\n"
    ),
    "openpcdet": lambda s, x: (
        f"2023-05-01 12:00:00,123   INFO  Train:    1/80 (  1%) [{s:4d}/464 (  2%)]  Loss: {x:.4f} (7.30)  LR: 3.000e-04  Time cost: 00:10/01:00 [00:12/1:20:00]  Acc_iter {s}          Data time: 0.10(0.10)  Forward time: 0.50(0.50)  Batch time: 0.60(0.60)\n"
    ),
    "hrnet": lambda s, x: (
        f"2020-05-01 12:00:00,123 Epoch: [0][{s}/1000]\tTime 0.512s (0.612s)\tSpeed 60.1 samples/s\tData 0.101s (0.102s)\tLoss {x:.5f} (7.30000)\tAccuracy 0.101 (0.102)\n"
    ),
    "kobert": lambda s, x: f"epoch 1 batch id {s} loss {x} train acc 0.5125\n",
    "ernie": lambda s, x: (
        f"[INFO] 2021-05-01 12:00:00,123 [run_classifier.py:  345]:\tepoch: 1, progress: {s}/100, step: {s}, ave loss: {x:.6f}, ave acc: 0.101000, speed: 1.234567 steps/s\n"
    ),
    "glove": lambda s, x: f"05/01/23 - 12:00.10AM, iter: {s:03d}, cost: {x:.6f}\n",
    "transformer-xl": lambda s, x: (
        f"| epoch   1 step {s:8d} | {s:6d} batches | lr 0.00025 | ms/batch 500.12 | loss {x:5.2f} | ppl  1408.105\n"
    ),
    "thumt": lambda s, x: f"epoch = 1, step = {s}, loss = {x:.3f}, (0.123 sec)\n",
    "nematus": lambda s, x: (
        f"INFO: [2019-05-01 12:00:00] Epoch: 0 Update: {s} Loss/word: {x} Words/sec: 1234.5 Sents/sec: 50.12\n"
    ),
    "onetrainer": lambda s, x: (
        f"\rstep:   1%|          | {s}/1000 [00:10<10:00,  1.00s/it, loss={x}, smooth loss=7.3]"
    ),
    "ai-toolkit": lambda s, x: (
        f"\rmy_lora:   1%|          | {s}/2000 [00:10<10:00,  1.00s/it, lr: 1.0e-04 loss: {x:.3e}]"
    ),
    "lerobot": lambda s, x: (
        f"INFO 2025-05-01 12:00:00 ts/train.py:232 step:{s} smpl:{s * 8} ep:0 epch:0.00 loss:{x:.3f} grdn:1.234 lr:1.0e-05 updt_s:0.123 data_s:0.012\n"
    ),
    "robomimic": lambda s, x: (
        f'Train Epoch {s}\n{{\n    "Cosine_Loss": 0.5,\n    "Loss": {x},\n    "Time_Data_Loading": 0.01,\n    "Time_Epoch": 0.5\n}}\n'
    ),
    "physicsnemo": lambda s, x: (
        f"[12:00:00 - train - INFO] Epoch {s} Metrics: Learning Rate =  1.000e-03, loss =  {x:.3e}\n[12:00:00 - train - INFO] Epoch Execution Time:  1.234e+01s, Time/Iter:  1.234e+02ms\n"
    ),
    "neuralop": lambda s, x: (
        f"Training on 1000 samples\n[{s}] time=1.23, avg_loss={x:.4f}, train_err=0.1234\nEval: 32_h1=0.3123, 32_l2=0.2123\n"
    ),
    "nequip": lambda s, x: (
        (
            "training\n# Epoch batch         loss       loss_f        f_mae       f_rmse\n"
            if s == 10
            else ""
        )
        + f"      1 {s:5d} {x:12.4g}         7.25          2.1          3.2\n"
    ),
    "detectron iter": lambda s, x: (
        f"[05/01 12:00:00] d2.utils.events INFO:  eta: 1:02:03  iter: {s}  total_loss: {x}  loss_cls: 1.2  loss_box_reg: 0.3  loss_rpn_cls: 0.5  loss_rpn_loc: 0.1    time: 0.5012  last_time: 0.4912  data_time: 0.0123  last_data_time: 0.0101   lr: 0.0002  max_mem: 3000M\n"
    ),
    "megatron mtp": lambda s, x: (
        f" [2025-05-01 12:00:00.123456] iteration {s:8d}/   10000 | consumed samples: {s * 256:12d} | elapsed time per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 312.1 | learning rate: 1.000000E-05 | global batch size:   256 | lm loss: {x:.6E} | mtp_1 loss: 9.100000E+00 | load_balancing_loss: 1.012000E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    ),
    "wandb echo": lambda s, x: (
        f"wandb: {{'train/loss': {x}, 'train/global_step': {s}, 'train/epoch': 0.{s}, '_timestamp': 1714560000, '_step': {s}}}\n"
    ),
    "german": lambda s, x: f"Schritt {s}: Verlust = {x}\n",
    "resumed scale": lambda s, x: f"step {s} | loss {x} | scale 4.0 | lr 1e-3\n",
    "guidance": lambda s, x: f"Iteration {s}/100, Loss: {x}, CFG scale: 7.5, Noise: 0.5\n",
    "loss and ema": lambda s, x: f"[{s}] loss: {x} ema_loss: 7.3 lr: 0.001\n",
    "batch of epoch": lambda s, x: (
        f"Epoch 1 of 3, batch {s} of 600: train loss = {x}, {s * 32} examples\n"
    ),
    "percent bar": lambda s, x: f"\r{s}% [====>     ] Loss: {x} Step: {s}/100",
    "nanotron-like eval": lambda s, x: (
        f"step={s} train_loss={x} " + ("eval_loss=6.9" if s % 20 == 0 else "") + "\n"
    ),
}

UNCLEAR: dict[str, Printed] = {
    "yolov8": lambda s, x: (
        (
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
            if s == 10
            else ""
        )
        + f"     {s // 10}/100      2.51G      {x}      2.345      1.123         16        640: 100%|██████████| 8/8 [00:02<00:00,  3.50it/s]\n"
    ),
    "rl_games": lambda s, x: (
        f"fps step: 12345 fps step and policy inference: 11000 fps total: 10000 epoch: {s}/1000 frames: {s * 16384}\n"
    ),
    "yolact": lambda s, x: (
        f"[  0]  {s:6d} || B: 5.123 | C: 10.234 | M: 4.012 | S: 1.012 | T: {x} || ETA: 1 day, 2:03:04 || timer: 0.412\n"
    ),
    "basicsr gan": lambda s, x: (
        f"2021-05-01 12:00:00,123 INFO: [train..][epoch:  0, iter: {s:7,d}, lr:(1.000e-04,)] [eta: 1 day, 0:00:00, time (data): 0.512 (0.012)] l_g_pix: {x:.4e} l_g_percep: 1.0000e+00 l_g_gan: 1.0000e-01 l_d_real: 5.0000e-01 l_d_fake: 5.0000e-01\n"
    ),
    "pix2pixhd": lambda s, x: (
        f"(epoch: 1, iters: {s}, time: 0.123) G_GAN: 1.012 G_GAN_Feat: {x} G_VGG: 4.012 D_real: 0.512 D_fake: 0.412 \n"
    ),
    "nerfstudio": lambda s, x: (
        (
            "Step (% Done)       Train Iter (time)    ETA (time)           Train Rays / Sec\n-----------------------------------------------------------------------------------\n"
            if s == 10
            else ""
        )
        + f"{s} (0.03%)          45.123 ms            22 m, 33 s           90.12 K\n"
    ),
    "vits": lambda s, x: (
        f"INFO:ljs_base:Train Epoch: 1 [0%]\nINFO:ljs_base:[{x}, 2.2, 3.3, 40.1, 1.2, 1.5, {s}, 0.0002]\n"
    ),
    "spinningup ppo": lambda s, x: (
        f"---------------------------------------\n|             Epoch |               {s} |\n|      AverageEpRet |            21.5 |\n|         VVals |            0.5 |\n| TotalEnvInteracts |        {s * 4000} |\n|            LossPi |          {x} |\n|             LossV |             200 |\n|           Entropy |            0.69 |\n|                KL |          0.0012 |\n---------------------------------------\n"
    ),
    "baselines ppo2": lambda s, x: (
        f"-------------------------------------\n| eplenmean          | 22           |\n| loss/approxkl      | 0.0012       |\n| loss/policy_entropy | 0.69        |\n| loss/policy_loss   | {x}        |\n| loss/value_loss    | 40.5         |\n| misc/nupdates      | {s}          |\n| misc/total_timesteps | {s * 2048} |\n-------------------------------------\n"
    ),
    "dreamer": lambda s, x: (
        f"[{s}] model_loss {x} / actor_loss 0.1 / value_loss 1.0 / kl 3.0 / fps 12.1\n"
    ),
    "edm": lambda s, x: (
        f"tick {s:<5d} kimg {s * 8.0:<9.1f} time 1m 10s       sec/tick 12.3    sec/kimg 1.23    maintenance 0.1    cpumem 3.21   gpumem 12.31  reserved 13.1\n"
    ),
    "sovits": lambda s, x: (
        f"2023-05-01 12:00:00,123\t44k\tINFO\tTrain Epoch: 1 [1%]\n2023-05-01 12:00:00,123\t44k\tINFO\tLosses: [2.5, 1.2, {x}, 30.1, 1.2], step: {s}, lr: 0.0001\n"
    ),
    "summed": lambda s, x: f"batch {s} running_loss {s * 0.5 + x / 100}\n",
    "mlm and nsp": lambda s, x: f"step {s} mlm_loss {x} nsp_loss 0.{s}\n",
    "dcgan": lambda s, x: (
        f"[0/25][{s}/1583] Loss_D: 0.5123 Loss_G: {x} D(x): 0.9123 D(G(z)): 0.1012 / 0.0512\n"
    ),
    "actor critic": lambda s, x: f"Episode {s}\tLast reward: 22.00\tAverage reward: 11.23\n",
    "raft": lambda s, x: (
        f"[{s:6d},  0.0000250]     {x:.4f},     0.1000,     0.2000,     0.3000, \n"
    ),
    "bilm": lambda s, x: f"Batch {s}, train_perplexity=1408.1\nTotal time: 12.3\n",
    "nmt": lambda s, x: (
        f"  step {s} lr 1 step-time 0.12s wps 12.34K ppl 1408.10 gN 4.50 bleu 0.00, Mon May  1 12:00:00 2017\n"
    ),
    "stargan": lambda s, x: (
        f"Elapsed time [0:01:10], Iteration [{s}/100000], D/latent_real: [0.5123] D/latent_fake: [0.4123] G/latent_adv: [{x}] G/latent_sty: [0.3123] G/lambda_ds: [0.9999]\n"
    ),
    "deepxde": lambda s, x: (
        (
            "Step      Train loss                        Test loss                         Test metric\n"
            if s == 10
            else ""
        )
        + f"{s:<9} [{x:.2e}, 1.00e-01, 2.00e-02]    [6.50e+00, 1.00e-01, 2.00e-02]    []  \n"
    ),
    "ce and dice": lambda s, x: f"Iter {s}: ce_loss {x} dice_loss 0.{s}\n",
    "td3": lambda s, x: f"Total T: {s} Episode Num: {s // 10} Episode T: 200 Reward: 12.345\n",
    "sum of three": lambda s, x: (
        f"iter {s}: recon_loss={x}, kl_div_loss=0.5, perceptual_loss=1.{s}\n"
    ),
    "teacher": lambda s, x: f"step {s} student_loss {x} teacher_loss 1.25\n",
    "val only": lambda s, x: f"Epoch {s}: val_loss={x}, val_acc=0.5\n",
}
"""Texts with several losses, or none: the message says what to name."""
