"""Golden cases of the primitives that products are made of: panels, blocks, segments."""

from __future__ import annotations

PRODUCT_CASES: dict[str, tuple[str, str, str]] = {
    "precompute: a panel for each iteration": (
        """
        func f(x: in f32[12], y: out f32[12]) {
          for i in 2 {
            for j in 3 {
              for k in 2 {
                %0: f32 = x[6*i + 3*k + j]
                %1: f32 = exp(%0)
                y[6*i + 2*j + k] = %1
              }
            }
          }
        }
        """,
        """
        precompute %1 i e k,j
        """,
        """
        func f(x: in f32[12], y: out f32[12]) {
          for i in 2 {
            alloc e: scratch f32[6]
            for e.0 in 2 {
              for e.1 in 3 {
                %0_1: f32 = x[3*e.0 + e.1 + 6*i]
                %1_1: f32 = exp(%0_1)
                e[3*e.0 + e.1] = %1_1
              }
            }
            for j in 3 {
              for k in 2 {
                %1: f32 = e[j + 3*k]
                y[6*i + 2*j + k] = %1
              }
            }
          }
        }
        """,
    ),
    "precompute: a row of registers, with the end of its loop": (
        """
        func f(x: in f32[10], y: out f32[20]) {
          for i in 3 {
            for j in 2 {
              for k in 4 until -4*i + 10 {
                %0: f32 = x[4*i + k]
                y[10*j + 4*i + k] = %0
              }
            }
          }
        }
        """,
        """
        precompute %0 i row k space=register
        """,
        """
        func f(x: in f32[10], y: out f32[20]) {
          for i in 3 {
            alloc row: register f32[4]
            for row.0 in 4 until -4*i + 10 unroll {
              %0_1: f32 = x[4*i + row.0]
              row[row.0] = %0_1
            }
            for j in 2 {
              for k in 4 until -4*i + 10 unroll {
                %0: f32 = row[k]
                y[10*j + 4*i + k] = %0
              }
            }
          }
        }
        """,
    ),
    "overwrite: sums that a nest begins and another adds to": (
        """
        func f(x: in i32[12], y: out i32[4]) {
          alloc t: scratch i32[4]
          for i in 4 {
            %0: i32 = 0
            t[i] = %0
          }
          alloc r: register i32[4]
          for i in 4 unroll {
            %1: i32 = x[i]
            r[i] = %1
          }
          for i in 4 unroll {
            %2: i32 = r[i]
            t[i] add= %2
          }
          for i in 4 {
            %3: i32 = t[i]
            y[i] = %3
          }
        }
        """,
        """
        overwrite t
        """,
        """
        func f(x: in i32[12], y: out i32[4]) {
          alloc t: scratch i32[4]
          alloc r: register i32[4]
          for i in 4 unroll {
            %1: i32 = x[i]
            r[i] = %1
          }
          for i in 4 unroll {
            %2: i32 = r[i]
            t[i] = %2
          }
          for i in 4 {
            %3: i32 = t[i]
            y[i] = %3
          }
        }
        """,
    ),
    "sink: what stands round a loop": (
        """
        func f(x: in f32[12], y: out f32[3]) {
          for i in 3 {
            alloc r: register f32[1]
            %0: f32 = -0.0
            r[0] = %0
            for j in 4 {
              %1: f32 = x[4*i + j]
              r[0] add= %1
            }
            %2: f32 = r[0]
            y[i] = %2
          }
        }
        """,
        """
        sink j
        """,
        """
        func f(x: in f32[12], y: out f32[3]) {
          for i in 3 {
            alloc r: register f32[1]
            %0: f32 = -0.0
            for j in 4 {
              if 0 <= j < 1 {
                r[0] = %0
              }
              %1: f32 = x[4*i + j]
              r[0] add= %1
              if 1 <= -1*j + 4 < 2 {
                %2: f32 = r[0]
                y[i] = %2
              }
            }
          }
        }
        """,
    ),
    "reorder: a buffer of the nest has a part for each iteration": (
        """
        func f(x: in f32[12], y: out f32[3]) {
          for i in 3 parallel {
            alloc r: scratch f32[1]
            for j in 4 {
              if 0 <= j < 1 {
                %0: f32 = -0.0
                r[0] = %0
              }
              %1: f32 = x[4*i + j]
              r[0] add= %1
              if 3 <= j < 4 {
                %2: f32 = r[0]
                y[i] = %2
              }
            }
          }
        }
        """,
        """
        reorder j i
        """,
        """
        func f(x: in f32[12], y: out f32[3]) {
          alloc r: scratch f32[3]
          for j in 4 {
            for i in 3 {
              if 0 <= j < 1 {
                %0: f32 = -0.0
                r[i] = %0
              }
              %1: f32 = x[4*i + j]
              r[i] add= %1
              if 3 <= j < 4 {
                %2: f32 = r[i]
                y[i] = %2
              }
            }
          }
        }
        """,
    ),
    "segment: rows of five in blocks of four": (
        """
        func f(x: in f32[24], y: out f32[40]) {
          for k in 2 {
            for o in 5 {
              for i in 4 {
                %0: f32 = x[6*(4*o + i)//5 + (4*o + i)%5 + k]
                y[20*k + 4*o + i] = %0
              }
            }
          }
        }
        """,
        """
        reorder o k i
        segment i s k
        """,
        """
        func f(x: in f32[24], y: out f32[40]) {
          for o in 5 {
            for s in 2 until ((4*o)%5 + 3)//5 + 1 {
              for k in 2 {
                for i in 4 {
                  if 0 <= i + -5*s + (4*o)%5 < 5 {
                    %0: f32 = x[i + k + s + 6*(4*o)//5 + (4*o)%5]
                    y[i + 20*k + 4*o] = %0
                  }
                }
              }
            }
          }
        }
        """,
    ),
    "narrow: bytes by way of sixteen bits": (
        """
        func f(x: in u8[6], y: out i32[6]) {
          for i in 6 {
            %0: u8 = x[i]
            %1: i32 = convert(%0) {dtype=i32}
            y[i] = %1
          }
        }
        """,
        """
        narrow %1 i16
        """,
        """
        func f(x: in u8[6], y: out i32[6]) {
          for i in 6 {
            %0: u8 = x[i]
            %1_1: i16 = convert(%0) {dtype=i16}
            %1: i32 = convert(%1_1) {dtype=i32}
            y[i] = %1
          }
        }
        """,
    ),
    "pad: a pair without its second element adds nothing": (
        """
        func f(x: in i32[5], y: in i32[5], z: out i32[1]) {
          alloc r: register i32[1]
          %0: i32 = 0
          r[0] = %0
          for i in 3 {
            for j in 2 until -2*i + 5 {
              %1: i32 = x[2*i + j]
              %2: i32 = y[2*i + j]
              %3: i32 = mul(%1, %2)
              r[0] add= %3
            }
          }
          %4: i32 = r[0]
          z[0] = %4
        }
        """,
        """
        pad j
        """,
        """
        func f(x: in i32[5], y: in i32[5], z: out i32[1]) {
          alloc r: register i32[1]
          %0: i32 = 0
          r[0] = %0
          for i in 3 {
            for j in 2 {
              %1: i32 = x[2*i + j] if 1 <= -2*i + -1*j + 5 < 6
              %2: i32 = y[2*i + j] if 1 <= -2*i + -1*j + 5 < 6
              %3: i32 = mul(%1, %2)
              r[0] add= %3
            }
          }
          %4: i32 = r[0]
          z[0] = %4
        }
        """,
    ),
    "distribute: a scalar is computed again": (
        """
        func f(x: in f32[13], y: out f32[12]) {
          for i in 4 {
            %0: f32 = x[3*i]
            %1: f32 = exp(%0)
            for j in 2 {
              %2: f32 = x[3*i + j]
              %3: f32 = sub(%2, %1)
              y[3*i + j] = %3
            }
            y[3*i + 2] = %1
          }
        }
        """,
        """
        distribute i scalars=repeat
        """,
        """
        func f(x: in f32[13], y: out f32[12]) {
          for i in 4 {
            %0_1: f32 = x[3*i]
            %1_1: f32 = exp(%0_1)
            for j in 2 {
              %2: f32 = x[3*i + j]
              %3: f32 = sub(%2, %1_1)
              y[3*i + j] = %3
            }
          }
          for i in 4 {
            %0_2: f32 = x[3*i]
            %1_2: f32 = exp(%0_2)
            y[3*i + 2] = %1_2
          }
        }
        """,
    ),
}
