"""More cases of the golden tests of schedules."""

from __future__ import annotations

from schedule_functions import BLOCK_ROWS, BLOCKS, LINE, ROWS

MORE_CASES: dict[str, tuple[str, str, str]] = {
    "split: each block is whole, or else the last": (
        LINE,
        """
        split i i.o i.i 4 tail=branch
        """,
        """
        func f(x: in f32[10], y: out f32[10]) {
          for i.o in 3 {
            if 0 <= i.o < 2 {
              for i.i in 4 {
                %0: f32 = x[i.i + 4*i.o]
                %1: f32 = neg(%0)
                y[i.i + 4*i.o] = %1
              }
            }
            if 2 <= i.o < 3 {
              for i.t in 2 {
                %0_1: f32 = x[i.t + 8]
                %1_1: f32 = neg(%0_1)
                y[i.t + 8] = %1_1
              }
            }
          }
        }
        """,
    ),
    "serialize: the iterations of a parallel loop in order": (
        """
        func f(x: in f32[21], y: out f32[21]) {
          for i in 3 parallel {
            for j in 8 until -8*i + 21 {
              %0: f32 = x[8*i + j]
              y[8*i + j] = %0
            }
          }
        }
        """,
        """
        serialize i
        """,
        """
        func f(x: in f32[21], y: out f32[21]) {
          for i in 3 {
            for j in 8 until -8*i + 21 {
              %0: f32 = x[8*i + j]
              y[8*i + j] = %0
            }
          }
        }
        """,
    ),
    "specialize: a whole tile, and the last one, which is smaller": (
        """
        func f(x: in f32[10], y: out f32[30]) {
          for o in 3 parallel {
            for p in 3 parallel {
              for i in 4 until -4*o + 10 {
                %0: f32 = x[i + 4*o] if 0 <= p < 2
                y[3*i + 12*o + p] = %0
              }
            }
          }
        }
        """,
        """
        specialize o 2 p
        specialize p 2 p
        """,
        """
        func f(x: in f32[10], y: out f32[30]) {
          for o in 3 parallel {
            for p in 3 parallel {
              if 0 <= p < 2 {
                if 0 <= o < 2 {
                  for i in 4 {
                    %0: f32 = x[i + 4*o]
                    y[3*i + 12*o + p] = %0
                  }
                }
                if 2 <= o < 3 {
                  for i in 4 until 2 {
                    %0_1: f32 = x[i + 8]
                    y[3*i + p + 24] = %0_1
                  }
                }
              }
              if 2 <= p < 3 {
                if 0 <= o < 2 {
                  for i in 4 {
                    %0_2: f32 = 0.0
                    y[3*i + 12*o + 2] = %0_2
                  }
                }
                if 2 <= o < 3 {
                  for i in 4 until 2 {
                    %0_1_1: f32 = 0.0
                    y[3*i + 26] = %0_1_1
                  }
                }
              }
            }
          }
        }
        """,
    ),
    "rfactor: copies end with the loops that are written out": (
        """
        func f(x: in f32[28], y: out f32[2]) {
          for c in 2 parallel {
            alloc r: register f32[4]
            for i in 4 until -2*c + 4 unroll {
              %0: f32 = -0.0
              r[i] = %0
            }
            for k in 7 {
              for i in 4 until -2*c + 4 unroll {
                %1: f32 = x[i + 4*k]
                r[i] add= %1
              }
            }
            %2: f32 = r[1]
            y[c] = %2
          }
        }
        """,
        """
        split k k.o k.i 4
        rfactor k.o r i
        """,
        """
        func f(x: in f32[28], y: out f32[2]) {
          for c in 2 parallel {
            alloc r: register f32[4]
            for i in 4 until -2*c + 4 unroll {
              %0: f32 = -0.0
              r[i] = %0
            }
            alloc r.k.o: register f32[4]
            for i in 4 until -2*c + 4 unroll {
              %r: f32 = -0.0
              r.k.o[i] = %r
            }
            for k.o in 2 {
              for k.i in 4 until -4*k.o + 7 {
                for i in 4 until -2*c + 4 unroll {
                  %1: f32 = x[i + 4*k.i + 16*k.o]
                  r.k.o[i] add= %1
                }
              }
            }
            for i in 4 until -2*c + 4 unroll {
              %r_1: f32 = r.k.o[i]
              r[i] add= %r_1
            }
            %2: f32 = r[1]
            y[c] = %2
          }
        }
        """,
    ),
    "split: whole blocks and the rest of a loop that ends early": (
        """
        func f(x: in f32[21], y: out f32[21]) {
          for i in 3 parallel {
            for j in 8 until -8*i + 21 {
              %0: f32 = x[8*i + j]
              y[8*i + j] = %0
            }
          }
        }
        """,
        """
        split j j.o j.i 4 tail=peel
        """,
        """
        func f(x: in f32[21], y: out f32[21]) {
          for i in 3 parallel {
            for j.o in 2 until -2*i + 5 {
              for j.i in 4 {
                %0: f32 = x[8*i + j.i + 4*j.o]
                y[8*i + j.i + 4*j.o] = %0
              }
            }
            if 1 <= -8*i + 21 < 8 {
              for j.t in 1 {
                %0_1: f32 = x[20]
                y[20] = %0_1
              }
            }
          }
        }
        """,
    ),
    "split: no rest where every end is a whole number of blocks": (
        """
        func f(x: in f32[20], y: out f32[20]) {
          for i in 3 parallel {
            for j in 8 until -8*i + 20 {
              %0: f32 = x[8*i + j]
              y[8*i + j] = %0
            }
          }
        }
        """,
        """
        split j j.o j.i 4 tail=peel
        """,
        """
        func f(x: in f32[20], y: out f32[20]) {
          for i in 3 parallel {
            for j.o in 2 until -2*i + 5 {
              for j.i in 4 {
                %0: f32 = x[8*i + j.i + 4*j.o]
                y[8*i + j.i + 4*j.o] = %0
              }
            }
          }
        }
        """,
    ),
    "rfactor: folds outside of the loops over which it goes stay": (
        """
        func f(x: in f32[10], y: out f32[1]) {
          %0: f32 = 2.0
          %1: f32 = -0.0
          y[0] = %1
          for q in 1 {
            for i in 10 {
              y[0] add= %0
            }
          }
        }
        """,
        """
        split i i.o i.i 4 tail=peel
        rfactor q y i.i
        """,
        """
        func f(x: in f32[10], y: out f32[1]) {
          %0: f32 = 2.0
          %1: f32 = -0.0
          y[0] = %1
          alloc y.q: register f32[4]
          for i.i in 4 unroll {
            %y: f32 = -0.0
            y.q[i.i] = %y
          }
          for q in 1 {
            for i.o in 2 {
              for i.i in 4 unroll {
                y.q[i.i] add= %0
              }
            }
            for i.t in 2 {
              y[0] add= %0
            }
          }
          for i.i in 4 unroll {
            %y_1: f32 = y.q[i.i]
            y[0] add= %y_1
          }
        }
        """,
    ),
    "share: a part of the code that is read behind a barrier": (
        """
        func f(x: in f32[60], y: out f32[60]) {
          for b in 2 block {
            for i in 8 until -8*b + 10 parallel {
              for j in 6 parallel {
                %0: f32 = x[48*b + 6*i + j]
                %1: f32 = 2.0
                %2: f32 = mul(%0, %1)
                %3: f32 = add(%2, %1)
                y[8*b + i + 10*j] = %3
              }
            }
          }
        }
        """,
        """
        share i j %2 pad=2
        """,
        """
        func f(x: in f32[60], y: out f32[60]) {
          for b in 2 block {
            alloc v2: shared f32[64]
            for i.in in 8 until -8*b + 10 parallel {
              for j.in in 6 parallel {
                %0_1: f32 = x[48*b + 6*i.in + j.in]
                %1_1: f32 = 2.0
                %2_1: f32 = mul(%0_1, %1_1)
                v2[8*i.in + j.in] = %2_1
              }
            }
            barrier
            for i in 8 until -8*b + 10 parallel {
              for j in 6 parallel {
                %2: f32 = v2[8*i + j]
                %1: f32 = 2.0
                %3: f32 = add(%2, %1)
                y[8*b + i + 10*j] = %3
              }
            }
          }
        }
        """,
    ),
    "set_space": (
        BLOCK_ROWS,
        """
        set_space r shared
        """,
        """
        func f(x: in f32[15], y: out f32[5]) {
          for i in 5 block {
            alloc r: shared f32[1]
            %0: f32 = -0.0
            r[0] = %0
            %1: f32 = x[3*i]
            for j in 3 {
              %2: f32 = x[3*i + j]
              %3: f32 = sub(%2, %1)
              r[0] add= %3
            }
            %4: f32 = r[0]
            y[i] = %4
          }
        }
        """,
    ),
    "distribute: nests within the loops of the body": (
        ROWS,
        """
        distribute i to=innermost
        """,
        """
        func f(x: in f32[15], y: out f32[5]) {
          alloc r: register f32[5]
          alloc v1: register f32[5]
          %0: f32 = -0.0
          for i in 5 unroll {
            r[i] = %0
            %1: f32 = x[3*i]
            v1[i] = %1
          }
          for j in 3 {
            for i in 5 unroll {
              %1_1: f32 = v1[i]
              %2: f32 = x[3*i + j]
              %3: f32 = sub(%2, %1_1)
              r[i] add= %3
            }
          }
          for i in 5 unroll {
            %4: f32 = r[i]
            y[i] = %4
          }
        }
        """,
    ),
    "distribute: conditions and scalars that do not change stay outside": (
        """
        func f(x: in f32[4], y: in f32[24], z: out f32[6]) {
          for i in 6 parallel {
            alloc r: register f32[1]
            %0: f32 = 0.0
            r[0] = %0
            for k in 4 {
              %1: f32 = x[k]
              %2: f32 = exp(%1)
              %3: bool = compare(%2, %0) {direction="gt"}
              if 1 <= k < 4 and %3 {
                %4: f32 = y[6*k + i]
                r[0] add= %2 * %4
              }
            }
            for j in 5 until i + 1 {
              r[0] add= %0
            }
            %5: f32 = r[0]
            z[i] = %5
          }
        }
        """,
        """
        distribute i to=innermost
        """,
        """
        func f(x: in f32[4], y: in f32[24], z: out f32[6]) {
          alloc r: register f32[6]
          %0: f32 = 0.0
          for i in 6 unroll {
            r[i] = %0
          }
          for k in 4 {
            %1: f32 = x[k]
            %2: f32 = exp(%1)
            %3: bool = compare(%2, %0) {direction="gt"}
            if 1 <= k < 4 and %3 {
              for i in 6 unroll {
                %4: f32 = y[6*k + i]
                r[i] add= %2 * %4
              }
            }
          }
          for i in 6 unroll {
            for j in 5 until i + 1 {
              r[i] add= %0
            }
          }
          for i in 6 unroll {
            %5: f32 = r[i]
            z[i] = %5
          }
        }
        """,
    ),
    "replicate: several warps, a row each": (
        BLOCKS,
        """
        split j j.o j.t 4
        reorder j.t j.o
        replicate i t j.t lanes=2
        """,
        """
        func f(x: in f32[20], y: out f32[5]) {
          for i in 5 block {
            alloc r.parts: shared f32[2]
            for t in 4 thread {
              alloc r: register f32[1]
              %0: f32 = -0.0
              r[0] = %0
              %1: f32 = x[4*i]
              for j.o in 1 {
                %2: f32 = x[4*i + t]
                %3: f32 = sub(%2, %1)
                r[0] add= %3
              }
              %r: f32 = r[0]
              %r_1: f32 = shuffle %r over t xor 1
              r[0] add= %r_1
              if 0 <= (t)%2 < 1 {
                %r_2: f32 = r[0]
                r.parts[(t)//2] = %r_2
              }
              barrier
              %r_3: f32 = r.parts[(t)%2]
              r[0] = %r_3
              %r_4: f32 = r[0]
              %r_5: f32 = shuffle %r_4 over t xor 1
              r[0] add= %r_5
              if 0 <= t < 1 {
                %4: f32 = r[0]
                y[i] = %4
              }
            }
          }
        }
        """,
    ),
    "replicate: threads for the points round them, and a tile": (
        """
        func f(x: in f32[40], y: out f32[10]) {
          for b in 2 block {
            for i in 3 until -3*b + 5 thread {
              for v in 2 vector {
                alloc t: scratch f32[4]
                alloc r: register f32[1]
                %0: f32 = -inf
                r[0] = %0
                for j in 4 {
                  %1: f32 = x[6*b + 2*i + v + 10*j]
                  r[0] max= %1
                  t[j] = %1
                }
                %2: f32 = r[0]
                alloc s: register f32[1]
                %6: f32 = -inf
                s[0] = %6
                for k in 4 {
                  %3: f32 = t[-1*k + 3]
                  %4: f32 = sub(%3, %2)
                  s[0] max= %4
                }
                %5: f32 = s[0]
                y[6*b + 2*i + v] = %5
              }
            }
          }
        }
        """,
        """
        replicate b t j k tiles=shared
        """,
        """
        func f(x: in f32[40], y: out f32[10]) {
          for b in 2 block {
            alloc t: shared f32[24]
            alloc r.parts: shared f32[24]
            alloc s.parts: shared f32[24]
            for t in 4 thread {
              for i in 3 until -3*b + 5 thread {
                for v in 2 vector {
                  alloc r: register f32[1]
                  %0: f32 = -inf
                  r[0] = %0
                  %1: f32 = x[6*b + 2*i + 10*t + v]
                  r[0] max= %1
                  t[2*i + 6*t + v] = %1
                  %r: f32 = r[0]
                  r.parts[2*i + 6*t + v] = %r
                  barrier
                  %r_1: f32 = r.parts[2*i + v]
                  r[0] = %r_1
                  for r.parts.i in 3 {
                    %r_2: f32 = r.parts[2*i + 6*r.parts.i + v + 6]
                    r[0] max= %r_2
                  }
                  %2: f32 = r[0]
                  alloc s: register f32[1]
                  %6: f32 = -inf
                  s[0] = %6
                  %3: f32 = t[2*i + -6*t + v + 18]
                  %4: f32 = sub(%3, %2)
                  s[0] max= %4
                  %s: f32 = s[0]
                  s.parts[2*i + 6*t + v] = %s
                  barrier
                  %s_1: f32 = s.parts[2*i + v]
                  s[0] = %s_1
                  for s.parts.i in 3 {
                    %s_2: f32 = s.parts[2*i + 6*s.parts.i + v + 6]
                    s[0] max= %s_2
                  }
                  if 0 <= t < 1 {
                    %5: f32 = s[0]
                    y[6*b + 2*i + v] = %5
                  }
                }
              }
            }
          }
        }
        """,
    ),
    "add_loop": (
        """
        func f(x: in f32[4], y: out f32[1]) {
          %0: f32 = -inf
          y[0] = %0
          for i in 4 {
            %1: f32 = x[i]
            y[0] max= %1
          }
        }
        """,
        """
        add_loop b
        """,
        """
        func f(x: in f32[4], y: out f32[1]) {
          for b in 1 parallel {
            %0: f32 = -inf
            y[0] = %0
            for i in 4 {
              %1: f32 = x[i]
              y[0] max= %1
            }
          }
        }
        """,
    ),
    "keep: a buffer of an iteration": (
        """
        func f(x: in f32[12], y: out f32[12]) {
          for g in 3 parallel {
            alloc t: scratch f32[4]
            for i in 2 {
              for u in 2 vector {
                %0: f32 = x[4*g + i + 2*u]
                %1: f32 = exp(%0)
                t[i + 2*u] = %1
              }
            }
            for j in 2 {
              for v in 2 vector {
                %2: f32 = t[j + 2*v]
                %3: f32 = neg(%2)
                y[4*g + j + 2*v] = %3
              }
            }
          }
        }
        """,
        """
        keep t g
        """,
        """
        func f(x: in f32[12], y: out f32[12]) {
          for g in 3 parallel {
            alloc t.g: register f32[4]
            for i in 2 unroll {
              for u in 2 vector {
                %0: f32 = x[4*g + i + 2*u]
                %1: f32 = exp(%0)
                t.g[2*i + u] = %1
              }
            }
            for j in 2 unroll {
              for v in 2 vector {
                %2: f32 = t.g[2*j + v]
                %3: f32 = neg(%2)
                y[4*g + j + 2*v] = %3
              }
            }
          }
        }
        """,
    ),
}
