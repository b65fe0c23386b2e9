"""The six methods as plain PyTorch loops, each written out by hand: what the library is held to.

Every loop does what the library does for the same method (draws, buffers, Fisher pass, scores of
each task once learned), with no classes, hooks or settings in between.
"""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

BATCH = 16


class Bare:
    """Data, model and optimizer shared by the loops below."""

    def __init__(self, tasks, make_optimizer, buffer=500, every=0, own_scores=True):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(tasks * BATCH, 100, generator=generator)
        self.y = torch.randint(10, (tasks * BATCH,), generator=generator)
        self.task = torch.arange(tasks).repeat_interleave(BATCH)
        self.tasks, self.every, self.own_scores, self.buffer = tasks, every, own_scores, buffer
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
        self.params = list(self.model.parameters())
        self.opt = make_optimizer(self.params)
        self.boundary = getattr(self.opt, "end_task", None)
        self.own = np.zeros(tasks)

    def batch(self, t):
        order = torch.randperm(BATCH) + t * BATCH
        return self.x[order], self.y[order]

    def rows(self, t):
        return self.x[t * BATCH : (t + 1) * BATCH], self.y[t * BATCH : (t + 1) * BATCH]

    def end(self, t):
        if self.boundary is not None:
            self.boundary()
        if self.every and (t + 1) % self.every == 0:
            self.scores(t + 1)
        elif self.own_scores:
            x, y = self.rows(t)
            with torch.no_grad():
                self.own[t] = (self.model(x).argmax(-1) == y).float().mean().item()

    def scores(self, upto):
        n = upto * BATCH
        with torch.no_grad():
            right = [
                (self.model(x).argmax(-1) == y).float()
                for x, y in zip(self.x[:n].split(4096), self.y[:n].split(4096), strict=True)
            ]
        total = torch.zeros(upto).index_add_(0, self.task[:n], torch.cat(right))
        return (total / BATCH).numpy()


def finetune(b):
    for t in range(b.tasks):
        x, y = b.batch(t)
        b.opt.zero_grad()
        F.cross_entropy(b.model(x), y).backward()
        b.opt.step()
        b.end(t)


def ewc(b, strength=1.0):
    sum_f = [torch.zeros_like(p) for p in b.params]
    sum_fw = [torch.zeros_like(p) for p in b.params]
    first, _, last = b.model
    for t in range(b.tasks):
        x, y = b.batch(t)
        b.opt.zero_grad()
        F.cross_entropy(b.model(x), y).backward()
        with torch.no_grad():
            for p, f, fw in zip(b.params, sum_f, sum_fw, strict=True):
                p.grad.addcmul_(f, p, value=2 * strength).add_(fw, alpha=-2 * strength)
        b.opt.step()
        x, y = b.rows(t)
        z1 = first(x)
        a1 = z1.relu()
        z2 = last(a1)
        loss = F.cross_entropy(z2, y, reduction="sum")
        d1, d2 = torch.autograd.grad(loss, (z1, z2))
        with torch.no_grad():
            s1, s2 = d1.square(), d2.square()
            fisher = (s1.T @ x.square(), s1.sum(0), s2.T @ a1.square(), s2.sum(0))
            for p, f, sf, sfw in zip(b.params, fisher, sum_f, sum_fw, strict=True):
                f.div_(BATCH)
                sf.add_(f)
                sfw.addcmul_(f, p)
        b.end(t)


def ewcpp(b, strength=1.0, decay=0.9):
    running = [torch.zeros_like(p) for p in b.params]
    fisher = [torch.zeros_like(p) for p in b.params]
    anchor = [torch.zeros_like(p) for p in b.params]
    for t in range(b.tasks):
        x, y = b.batch(t)
        b.opt.zero_grad()
        F.cross_entropy(b.model(x), y).backward()
        with torch.no_grad():
            for p, r, f, a in zip(b.params, running, fisher, anchor, strict=True):
                r.mul_(1 - decay).addcmul_(p.grad, p.grad, value=decay)
                p.grad.addcmul_(f, p - a, value=2 * strength)
        b.opt.step()
        with torch.no_grad():
            for p, r, f, a in zip(b.params, running, fisher, anchor, strict=True):
                f.copy_(r)
                a.copy_(p)
        b.end(t)


def _reservoir_slots(seen, n, capacity):
    number = np.arange(seen, seen + n)
    slots = number if seen + n <= capacity else np.random.randint(0, number + 1)
    slots = np.where(number < capacity, number, slots)
    last = {int(slot): i for i, slot in enumerate(slots) if slot < capacity}
    return torch.tensor(list(last.values())), torch.tensor(list(last))


def reservoir(b):
    bx, by = torch.zeros(b.buffer, 100), torch.zeros(b.buffer, dtype=torch.long)
    seen = 0
    for t in range(b.tasks):
        x, y = b.batch(t)
        b.opt.zero_grad()
        if seen:
            draw = torch.randperm(min(seen, b.buffer))[:BATCH]
            out = b.model(torch.cat([x, bx[draw]]))
            loss = F.cross_entropy(out[:BATCH], y) + F.cross_entropy(out[BATCH:], by[draw])
        else:
            loss = F.cross_entropy(b.model(x), y)
        loss.backward()
        b.opt.step()
        rows, slots = _reservoir_slots(seen, BATCH, b.buffer)
        if len(rows):
            bx[slots], by[slots] = x[rows], y[rows]
        seen += BATCH
        b.end(t)


def derpp(b, alpha=1.0, beta=1.0):
    bx, by = torch.zeros(b.buffer, 100), torch.zeros(b.buffer, dtype=torch.long)
    bz = torch.zeros(b.buffer, 10)
    seen = 0
    for t in range(b.tasks):
        x, y = b.batch(t)
        b.opt.zero_grad()
        if seen:
            i, j = (torch.randperm(min(seen, b.buffer))[:BATCH] for _ in range(2))
            out = b.model(torch.cat([x, bx[i], bx[j]]))
            new, matched, replayed = out.split(BATCH)
            loss = F.cross_entropy(new, y) + alpha * F.mse_loss(matched, bz[i])
            loss = loss + beta * F.cross_entropy(replayed, by[j])
        else:
            new = b.model(x)
            loss = F.cross_entropy(new, y)
        loss.backward()
        b.opt.step()
        rows, slots = _reservoir_slots(seen, BATCH, b.buffer)
        if len(rows):
            bx[slots], by[slots], bz[slots] = x[rows], y[rows], new.detach()[rows]
        seen += BATCH
        b.end(t)


def agem(b):
    bx, by = torch.zeros(b.buffer, 100), torch.zeros(b.buffer, dtype=torch.long)
    rank = np.full(b.buffer, b.buffer)  # place of the example in its task; b.buffer: empty
    for t in range(b.tasks):
        x, y = b.batch(t)
        b.opt.zero_grad()
        if t:
            filled = np.flatnonzero(rank < b.buffer)
            draw = torch.from_numpy(filled[np.random.permutation(len(filled))[:BATCH]])
            reference = torch.autograd.grad(F.cross_entropy(b.model(bx[draw]), by[draw]), b.params)
        F.cross_entropy(b.model(x), y).backward()
        if t:
            g = torch.cat([p.grad.flatten() for p in b.params])
            r = torch.cat([g.flatten() for g in reference])
            inner = torch.dot(g, r)
            if inner < 0:
                scale = inner / torch.dot(r, r)
                with torch.no_grad():
                    for p, r in zip(b.params, reference, strict=True):
                        p.grad.sub_(r * scale)
        b.opt.step()
        if t < b.buffer:
            quota = b.buffer // (t + 1)
            rank[rank >= quota] = b.buffer
            size = min(BATCH, quota)
            slots = np.flatnonzero(rank == b.buffer)[:size]
            rank[slots] = np.arange(size)
            rows = torch.randperm(BATCH)[:size]
            x, y = b.rows(t)
            slots = torch.from_numpy(slots)
            bx[slots], by[slots] = x[rows], y[rows]
        elif (slot := np.random.randint(0, t + 1)) < b.buffer:
            x, y = b.rows(t)
            bx[slot], by[slot] = x[0], y[0]
        b.end(t)


LOOPS = {
    "finetune": finetune,
    "ewc": ewc,
    "ewcpp": ewcpp,
    "reservoir": reservoir,
    "derpp": derpp,
    "agem": agem,
}
