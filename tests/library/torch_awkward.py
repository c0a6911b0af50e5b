"""A module with all that is awkward for the streaming of its parameters. `torch` is None where it is not installed."""

try:
    import torch
    from torch.utils.checkpoint import checkpoint
except ImportError:
    torch = None

SEED, WIDTH = 7, 256


def awkward(checkpointing=None):
    """Tied weights, a module that runs twice, attention and a convolution that read their children's weights, parameters of the parent, a
    recurrent module, a frozen one, one of other type, and one that never runs."""
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
            self.down = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)

        def forward(self, hidden):
            hidden = hidden + self.attention(self.norm(hidden), hidden, hidden, need_weights=False)[0]
            return hidden + torch.nn.functional.linear(torch.relu(self.up(hidden)), self.down.weight)

    class Awkward(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(500, WIDTH)
            self.blocks = torch.nn.ModuleList([Block(), Block()])
            self.twice = torch.nn.Linear(WIDTH, WIDTH)
            self.recurrent = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.gain = torch.nn.Parameter(torch.ones(WIDTH, 300) * 0.01)
            self.frozen = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)
            self.never = torch.nn.Linear(WIDTH, 3 * WIDTH)
            self.empty = torch.nn.Parameter(torch.ones(0))
            self.narrow = torch.nn.Linear(WIDTH, WIDTH).bfloat16()
            self.head = torch.nn.Linear(WIDTH, 500, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            hidden = self.embedding(tokens)
            for block in self.blocks:
                hidden = block(hidden) if checkpointing is None else checkpoint(block, hidden, use_reentrant=checkpointing)
            hidden = self.twice(torch.tanh(self.twice(hidden)))
            hidden = self.recurrent(hidden)[0] + self.frozen(hidden) + self.narrow(hidden.bfloat16()).float()
            return self.head(hidden) + (self.gain ** 2).sum()
    torch.manual_seed(SEED)
    return Awkward()


def tokens(step):
    return torch.randint(0, 500, (2, 12), generator=torch.Generator().manual_seed(step))


def trainable():
    """Without the parameters of 16 bits: their gradients add up in fp32 here, and in 16 bits in `.grad`."""
    model = awkward()
    model.narrow.requires_grad_(False)
    return model


def train(model, optimizer, first, last):
    """Returns the losses and norms of steps of two micro-batches."""
    losses = []
    for step in range(first, last):
        optimizer.zero_grad()
        for micro in range(2):
            loss = model(tokens(10 * step + micro)).pow(2).mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        losses.append(optimizer.last_result.grad_norm)
    return losses
