"""Functions with what is hard to render: golden texts show them, and tests run them."""

from __future__ import annotations

TEXTS = {
    # Copies of unrolled loops, registers that become scalars, products and other folds, masks.
    "unrolled": """
func unrolled(x: in f32[64], y: out f32[64]) {
  for i in 16 parallel {
    alloc acc: register f32[4]
    for j in 4 unroll {
      %0: f32 = x[4*i + j]
      acc[j] = %0
      acc[j] add= %0 * %0
    }
    for j in 4 unroll {
      %1: f32 = acc[j]
      y[4*i + j] = %1
      %2: f32 = x[4*i + j + -1] if 1 <= 4*i + j < 33
      y[4*i + j] max= %2
    }
  }
}
""",
    # Vectors in registers, by an axis that other loops do not unroll, which lanes fold to elements.
    "folded": """
func folded(x: in f32[256], y: out f32[64], z: out f32[8]) {
  for i in 4 parallel {
    alloc acc: register f32[16]
    for r in 2 unroll {
      for v in 8 vector {
        %0: f32 = x[64*i + 8*r + v]
        acc[8*r + v] = %0
      }
    }
    for k in 3 {
      for r in 2 unroll {
        for v in 8 vector {
          %1: f32 = x[64*i + 16*k + 8*r + v + 16] if 0 <= 8*r + v < 16
          acc[8*r + v] add= %1
        }
      }
    }
    alloc total: register f32[1]
    alloc top: register f32[1]
    %2: f32 = 0.0
    total[0] = %2
    %3: f32 = -inf
    top[0] = %3
    for r in 2 unroll {
      for v in 8 vector {
        %4: f32 = acc[8*r + v]
        total[0] add= %4
        top[0] max= %4
      }
    }
    %5: f32 = total[0]
    z[2*i] = %5
    %6: f32 = top[0]
    z[2*i + 1] = %6
    for r in 2 {
      for v in 8 vector {
        %7: f32 = x[64*i + 8*r + 7] if 0 <= v < 5
        %8: f32 = max(%7, %5)
        y[16*i + 8*r + v] = %8
      }
    }
  }
}
""",
    # Rows whose tile stands in scratch, of units that calls share in any way.
    "softmax": """
func softmax(x: in f32[3600], y: out f32[3600]) {
  for a in 2 parallel {
    for b in 3 parallel {
      alloc tile: scratch f32[600]
      alloc top: register f32[1]
      %0: f32 = -inf
      top[0] = %0
      for j in 600 {
        %1: f32 = x[1800*a + 600*b + j]
        top[0] max= %1
      }
      %2: f32 = top[0]
      alloc total: register f32[1]
      %3: f32 = 0.0
      total[0] = %3
      for j in 600 {
        %4: f32 = x[1800*a + 600*b + j]
        %5: f32 = sub(%4, %2)
        %6: f32 = exp(%5)
        tile[j] = %6
        total[0] add= %6
      }
      %7: f32 = total[0]
      for j in 600 vector {
        %8: f32 = tile[j]
        %9: f32 = div(%8, %7)
        y[1800*a + 600*b + j] = %9
      }
    }
  }
}
""",
    # Loaded indices, quotients of negative numbers, soft floats, bools, names that C has taken.
    "gathered": """
func gathered(x.in: in f16[40], at: in i32[32], int: out bf16[32], v1: out bool[32]) {
  for for in 32 parallel {
    %0: i32 = at[for]
    %1: i32 = 39
    %2: i32 = min(%0, %1)
    %3: i32 = 0
    %4: i32 = max(%2, %3)
    %5: f16 = x.in[d0[0:39]](%4) if 0 <= (for + -8)//3 < 6
    %6: bf16 = convert(%5) {dtype=bf16}
    int[for] = %6
    %7: bool = inside 0 <= (for + -5)%7 < 3
    %8: bool = true
    %9: bool = xor(%7, %8)
    v1[for] = %9
  }
}
""",
    # Loops that end early, two of one name, a condition, a local array, integers of every kind.
    "ragged": """
func ragged(x: in i8[100], y: out i64[10]) {
  for i in 10 parallel {
    alloc sums: scratch i64[3]
    %0: i64 = 0
    for k in 3 {
      sums[k] = %0
    }
    for j in 12 until 3*i + 1 {
      %1: i8 = x[3*i + j]
      %2: i8 = mul(%1, %1)
      %3: i64 = convert(%2) {dtype=i64}
      sums[(j)%3] add= %3
    }
    for j in 12 until i + 2 {
      %7: i8 = x[i + j]
      %8: i64 = convert(%7) {dtype=i64}
      sums[(j)%3] max= %8
    }
    for k in 3 {
      %4: i64 = sums[k]
      %5: bool = compare(%4, %0) {direction="lt"}
      if 0 <= i + k < 9 and %5 {
        sums[0] min= %4
      }
    }
    %6: i64 = sums[0]
    y[i] = %6
  }
}
""",
    # Straight loops: accumulators that are vectors, operands that are the same for all, masks.
    "vectors": """
func vectors(a: in f32[60], b: in f32[160], h: in f16[32], y: out f32[64], z: out f16[32]) {
  for i in 2 parallel {
    alloc acc: register f32[32]
    %0: f32 = -1.0
    for j in 2 unroll {
      for l in 8 vector {
        acc[8*j + l] = %0
        acc[8*j + l + 16] = %0
      }
    }
    for k in 10 {
      for m in 2 unroll {
        %1: f32 = a[30*i + 3*k + m]
        for j in 2 unroll {
          for l in 8 vector {
            %2: f32 = b[16*k + 8*j + l] if 1 <= i + k < 10
            %3: f32 = mul(%2, %0)
            %4: f32 = add(%3, %2)
            %5: f32 = sub(%4, %3)
            acc[16*m + 8*j + l] add= %5 * %1
          }
        }
      }
    }
    for j in 4 unroll {
      for l in 8 vector {
        %6: f32 = acc[8*j + l] if 1 <= i + j < 9
        y[32*i + 8*j + l] = %6 if 0 <= i + j < 9
        y[32*i + 8*j + l] mul= %0
      }
    }
    %7: f32 = acc[17]
    y[32*i] = %7
    for l in 16 vector {
      %8: f16 = h[16*i + l]
      z[16*i + l] = %8
    }
  }
}
""",
    # Copies read side by side what lanes read far apart: rows of squares become columns.
    "squares": """
func squares(x: in f32[72], b: in bool[64], y: out f32[64], z: out u8[64]) {
  for i in 2 parallel {
    for j in 2 parallel {
      for u in 4 unroll {
        %0: f32 = 2.0
        for v in 4 vector {
          %1: f32 = x[4*i + u + 32*j + 8*v + -8] if 1 <= 4*j + v < 8
          %2: f32 = x[4*i + u + 32*j + 8*v + -3] if 3 <= 4*i + u < 8
          %3: f32 = mul(%1, %0)
          %4: f32 = sub(%3, %2)
          y[32*i + 8*u + 4*j + v] = %4
        }
      }
      for u in 4 unroll {
        for v in 4 vector {
          %5: bool = b[4*i + u + -32*j + -8*v + 56]
          %6: bool = b[32*i + 8*u + 4*j + v]
          %7: bool = xor(%5, %6)
          %8: u8 = convert(%7) {dtype=u8}
          z[32*i + 8*u + 4*j + v] = %8
        }
      }
    }
  }
}
""",
    # Threads of a block that meet, and memory that they share.
    # A loop that ends where a register is false.
    "powers": """
func powers(x: in f32[40], y: out f32[40]) {
  for i in 40 parallel {
    alloc more: register bool[1]
    %0: bool = true
    more[0] = %0
    alloc v: register f32[1]
    %1: f32 = x[i]
    v[0] = %1
    for k in 20 until i + 2 {
      %2: bool = more[0]
      if %2 {
        %3: f32 = v[0]
        %4: f32 = add(%3, %3)
        v[0] = %4
        %5: f32 = 100.0
        %6: bool = compare(%4, %5) {direction="lt"}
        more[0] = %6
      }
    }
    %7: f32 = v[0]
    y[i] = %7
  }
}
""",
    "block_sum": """
func block_sum(x: in f32[4096], y: out f32[16]) {
  for b in 16 block {
    alloc part: shared f32[64]
    for t in 64 thread {
      alloc total: register f32[1]
      %0: f32 = -0.0
      total[0] = %0
      for k in 4 {
        %1: f32 = x[256*b + 64*k + t]
        total[0] add= %1
      }
      %2: f32 = total[0]
      part[t] = %2
      barrier
      if 0 <= t < 1 {
        alloc all: register f32[1]
        all[0] = %0
        for j in 64 {
          %3: f32 = part[j]
          all[0] add= %3
        }
        %4: f32 = all[0]
        y[b] = %4
      }
    }
  }
}
""",
    # Some threads have nothing to do but to meet the others.
    "block_rest": """
func block_rest(x: in f32[40], y: out f32[10]) {
  for b in 2 block {
    alloc part: shared f32[20]
    for t in 4 thread {
      for i in 8 until 5 thread {
        %0: f32 = x[20*b + 5*t + i]
        part[5*t + i] = %0
        barrier
        if 0 <= t < 1 {
          alloc all: register f32[1]
          %1: f32 = -0.0
          all[0] = %1
          for j in 4 {
            %2: f32 = part[5*j + i]
            all[0] add= %2
          }
          %3: f32 = all[0]
          y[5*b + i] = %3
        }
      }
    }
  }
}
""",
    # Masks that hold in some lanes of the first vector, and of the last one.
    "seams": """
func seams(x: in f32[40], y: inout f32[40]) {
  for i in 5 parallel {
    for l in 8 vector {
      %0: f32 = x[8*i + l + -3] if 3 <= 8*i + l < 41
      %1: f32 = add(%0, %0)
      y[8*i + l] = %1 if 0 <= 8*i + l < 37
    }
  }
}
""",
    # The last block has fewer threads, all of which have to meet.
    "short_block": """
func short_block(x: in f32[150], y: out f32[150]) {
  for b in 3 block {
    alloc part: shared f32[64]
    for t in 64 until -64*b + 150 thread {
      %0: f32 = x[64*b + t]
      part[t] = %0
      barrier
      %1: f32 = part[0]
      %2: f32 = add(%0, %1)
      y[64*b + t] = %2
    }
  }
}
""",
}
#: Those whose threads meet, which plain C does not have.
MEETING = ("block_sum", "block_rest", "short_block")
