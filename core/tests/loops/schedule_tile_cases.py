"""Cases of the golden tests of tiles in shared memory and in registers of threads."""

from __future__ import annotations

TILE_CASES: dict[str, tuple[str, str, str]] = {
    "share: what loops sum up goes through shared memory": (
        """
        func f(x: in f32[20], y: in f32[15], z: out f32[12]) {
          for i in 4 parallel {
            for j in 3 parallel {
              alloc r0: register f32[1]
              %0: f32 = -0.0
              r0[0] = %0
              for k in 5 {
                %1: f32 = x[5*i + k]
                %2: f32 = y[j + 3*k]
                r0[0] add= %1 * %2
              }
              %3: f32 = r0[0]
              %4: f32 = neg(%3)
              z[3*i + j] = %4
            }
          }
        }
        """,
        """
        split i b i2 2
        bind b block
        share i2 j %3
        """,
        """
        func f(x: in f32[20], y: in f32[15], z: out f32[12]) {
          for b in 2 block {
            alloc v3: shared f32[6]
            for i2.in in 2 parallel {
              for j.in in 3 parallel {
                alloc r0: register f32[1]
                %0_1: f32 = -0.0
                r0[0] = %0_1
                for k in 5 {
                  %1_1: f32 = x[10*b + 5*i2.in + k]
                  %2_1: f32 = y[j.in + 3*k]
                  r0[0] add= %1_1 * %2_1
                }
                %3_1: f32 = r0[0]
                v3[3*i2.in + j.in] = %3_1
              }
            }
            barrier
            for i2 in 2 parallel {
              for j in 3 parallel {
                %3: f32 = v3[3*i2 + j]
                %4: f32 = neg(%3)
                z[6*b + 3*i2 + j] = %4
              }
            }
          }
        }
        """,
    ),
    "precompute: a tile in shared memory, with gaps between its lines": (
        """
        func f(x: in f32[20], y: in f32[15], z: out f32[12]) {
          for i in 4 parallel {
            for j in 3 parallel {
              alloc r0: register f32[1]
              %0: f32 = -0.0
              r0[0] = %0
              for k in 5 {
                %1: f32 = x[5*i + k]
                %2: f32 = y[j + 3*k]
                r0[0] add= %1 * %2
              }
              %3: f32 = r0[0]
              %4: f32 = neg(%3)
              z[3*i + j] = %4
            }
          }
        }
        """,
        """
        split i b i2 2
        bind b block
        serialize i2 j
        distribute i2 j space=scratch scalars=repeat
        reorder k i2 j
        split k k.o k.i 2
        precompute %1 k.o xs i2,k.i space=shared pad=1
        """,
        """
        func f(x: in f32[20], y: in f32[15], z: out f32[12]) {
          for b in 2 block {
            alloc r0: scratch f32[6]
            %0: f32 = -0.0
            for i2 in 2 {
              for j in 3 {
                r0[3*i2 + j] = %0
              }
            }
            for k.o in 3 {
              alloc xs: shared f32[5]
              for xs.0 in 2 {
                for xs.1 in 2 until -2*k.o + 5 {
                  %1_1: f32 = x[10*b + 2*k.o + 5*xs.0 + xs.1]
                  xs[3*xs.0 + xs.1] = %1_1
                }
              }
              barrier
              for k.i in 2 until -2*k.o + 5 {
                for i2 in 2 {
                  for j in 3 {
                    %1: f32 = xs[3*i2 + k.i]
                    %2: f32 = y[j + 3*k.i + 6*k.o]
                    r0[3*i2 + j] add= %1 * %2
                  }
                }
              }
              barrier
            }
            for i2 in 2 {
              for j in 3 {
                %3: f32 = r0[3*i2 + j]
                %4: f32 = neg(%3)
                z[6*b + 3*i2 + j] = %4
              }
            }
          }
        }
        """,
    ),
    "set_space: sums in registers of the threads of a block": (
        """
        func f(x: in f32[20], y: in f32[15], z: out f32[12]) {
          for i in 4 parallel {
            for j in 3 parallel {
              alloc r0: register f32[1]
              %0: f32 = -0.0
              r0[0] = %0
              for k in 5 {
                %1: f32 = x[5*i + k]
                %2: f32 = y[j + 3*k]
                r0[0] add= %1 * %2
              }
              %3: f32 = r0[0]
              %4: f32 = neg(%3)
              z[3*i + j] = %4
            }
          }
        }
        """,
        """
        split i b i2 2
        bind b block
        distribute i2 j space=scratch scalars=repeat
        reorder k i2 j
        set_space r0 shared
        bind j thread
        unroll i2
        set_space r0 fragment
        """,
        """
        func f(x: in f32[20], y: in f32[15], z: out f32[12]) {
          for b in 2 block {
            alloc r0: fragment f32[6]
            %0: f32 = -0.0
            for i2 in 2 unroll {
              for j in 3 thread {
                r0[3*i2 + j] = %0
              }
            }
            for k in 5 {
              for i2 in 2 unroll {
                for j in 3 thread {
                  %1: f32 = x[10*b + 5*i2 + k]
                  %2: f32 = y[j + 3*k]
                  r0[3*i2 + j] add= %1 * %2
                }
              }
            }
            for i2 in 2 unroll {
              for j in 3 thread {
                %3: f32 = r0[3*i2 + j]
                %4: f32 = neg(%3)
                z[6*b + 3*i2 + j] = %4
              }
            }
          }
        }
        """,
    ),
    "pad: what could be no number is no factor past the end": (
        """
        func f(x: in f32[5], y: out f32[1]) {
          alloc r: register f32[1]
          %0: f32 = -0.0
          r[0] = %0
          for i in 3 {
            for j in 2 until -2*i + 5 {
              %1: f32 = x[2*i + j]
              %2: f32 = exp(%1)
              r[0] add= %1 * %2
            }
          }
          %4: f32 = r[0]
          y[0] = %4
        }
        """,
        """
        pad j
        """,
        """
        func f(x: in f32[5], y: out f32[1]) {
          alloc r: register f32[1]
          %0: f32 = -0.0
          r[0] = %0
          for i in 3 {
            for j in 2 {
              %1: f32 = x[2*i + j] if 1 <= -2*i + -1*j + 5 < 6
              %2: f32 = exp(%1)
              %inside: bool = inside 1 <= -2*i + -1*j + 5 < 6
              %2_1: f32 = 0.0
              %2_2: f32 = select(%inside, %2, %2_1)
              r[0] add= %1 * %2_2
            }
          }
          %4: f32 = r[0]
          y[0] = %4
        }
        """,
    ),
    "pad: an index that is loaded past the end touches nothing": (
        """
        func f(n: in i32[3], x: in f32[8], y: out f32[3]) {
          for i in 2 {
            alloc t: scratch f32[2]
            for j in 2 until -2*i + 3 {
              %0: i32 = n[2*i + j]
              %1: f32 = x[d0[0:8]](%0)
              t[j] = %1
            }
            for j in 2 until -2*i + 3 {
              %2: f32 = t[j]
              y[2*i + j] = %2
            }
          }
        }
        """,
        """
        pad j
        """,
        """
        func f(n: in i32[3], x: in f32[8], y: out f32[3]) {
          for i in 2 {
            alloc t: scratch f32[2]
            for j in 2 {
              %0: i32 = n[2*i + j] if 1 <= -2*i + -1*j + 3 < 4
              %1: f32 = x[d0[0:8]](%0) if 1 <= -2*i + -1*j + 3 < 4
              t[j] = %1
            }
            for j in 2 until -2*i + 3 {
              %2: f32 = t[j]
              y[2*i + j] = %2
            }
          }
        }
        """,
    ),
    "widen: bytes are summed in words": (
        """
        func f(x: in i8[6], y: out i8[2]) {
          for i in 2 {
            alloc r: register i8[1]
            %0: i8 = 0
            r[0] = %0
            for j in 3 {
              %1: i8 = x[3*i + j]
              %2: i8 = mul(%1, %1)
              r[0] add= %2
            }
            %3: i8 = r[0]
            y[i] = %3
          }
        }
        """,
        """
        widen r i32
        """,
        """
        func f(x: in i8[6], y: out i8[2]) {
          for i in 2 {
            alloc r: register i32[1]
            %0: i8 = 0
            %0_1: i32 = convert(%0) {dtype=i32}
            r[0] = %0_1
            for j in 3 {
              %1: i8 = x[3*i + j]
              %1_1: i32 = convert(%1) {dtype=i32}
              %1_2: i32 = convert(%1) {dtype=i32}
              %2_1: i32 = mul(%1_1, %1_2)
              r[0] add= %2_1
            }
            %3_1: i32 = r[0]
            %3: i8 = convert(%3_1) {dtype=i8}
            y[i] = %3
          }
        }
        """,
    ),
    "double_buffer: copies that come later, and one that is computed": (
        """
        func f(x: in f32[12], y: in f32[12], z: out f32[6]) {
          for b in 1 block {
            for k in 3 {
              alloc s: shared f32[4]
              for t in 2 thread {
                for u in 2 unroll {
                  %0: f32 = x[4*k + t + 2*u]
                  %1: f32 = exp(%0)
                  s[t + 2*u] = %1
                }
              }
              alloc p: shared f32[4]
              for t in 2 thread {
                for u in 2 unroll {
                  %2: f32 = y[4*k + 2*t + u]
                  p[2*t + u] = %2
                }
              }
              barrier
              for t in 2 thread {
                %3: f32 = s[-1*t + 3]
                %4: f32 = p[-2*t + 2]
                %5: f32 = add(%3, %4)
                z[2*k + t] = %5
              }
              barrier
            }
          }
        }
        """,
        """
        double_buffer k 3 p ahead=2
        """,
        """
        func f(x: in f32[12], y: in f32[12], z: out f32[6]) {
          for b in 1 block {
            alloc s: shared f32[12]
            alloc p: shared f32[12]
            for k.f in 2 unroll {
              for t in 2 thread {
                for u in 2 unroll {
                  %0_1: f32 = x[4*k.f + t + 2*u]
                  %1_1: f32 = exp(%0_1)
                  s[4*k.f + t + 2*u] = %1_1
                }
              }
              for t in 2 thread {
                for u in 2 unroll {
                  %2_1: f32 = y[4*k.f + 2*t + u]
                  p[4*k.f + 2*t + u] later = %2_1
                }
              }
              commit
            }
            for k in 3 {
              wait 1
              barrier
              alloc s.r: fragment f32[4]
              if 0 <= k < 1 {
                for t in 2 thread {
                  for u in 2 unroll {
                    %0_2: f32 = x[4*k + t + 2*u + 8]
                    %1_3: f32 = exp(%0_2)
                    s.r[2*t + u] = %1_3
                  }
                }
              }
              if 0 <= k < 1 {
                for t in 2 thread {
                  for u in 2 unroll {
                    %2_2: f32 = y[4*k + 2*t + u + 8]
                    p[4*k + 2*t + u + 8] later = %2_2
                  }
                }
              }
              commit
              for t in 2 thread {
                %3: f32 = s[4*k + -1*t + 3]
                %4: f32 = p[4*k + -2*t + 2]
                %5: f32 = add(%3, %4)
                z[2*k + t] = %5
              }
              if 0 <= k < 1 {
                for t in 2 thread {
                  for u in 2 unroll {
                    %1_2_1: f32 = s.r[2*t + u]
                    s[4*k + t + 2*u + 8] = %1_2_1
                  }
                }
              }
            }
            barrier
          }
        }
        """,
    ),
    "double_buffer: products that an instruction is asked for come later": (
        """
        func f(x: in f32[48], y: in f32[48], z: out f32[16]) {
          for i in 4 parallel {
            for j in 4 parallel {
              alloc r0: register f32[1]
              %0: f32 = -0.0
              r0[0] = %0
              for k in 12 {
                %1: f32 = x[12*i + k]
                %2: f32 = y[j + 4*k]
                r0[0] add= %1 * %2
              }
              %3: f32 = r0[0]
              z[4*i + j] = %3
            }
          }
        }
        """,
        """
        split i i.o i 4
        bind i.o block
        distribute i j space=scratch scalars=repeat
        split k k.o k 4
        reorder k.o k i j
        precompute %1 k.o xs i,k space=shared
        precompute %2 k.o ys k,j space=shared
        set_space r0 shared
        bind xs.0 thread
        bind ys.0 thread
        unroll xs.1 ys.1
        split i i.t i.u 2
        split j j.t j.u 2
        reorder i.t j.t i.u j.u
        reorder i.t j.t i.u j.u k
        tensorize i.t 4x4x4
        bind j.t thread
        bind i.t thread
        unroll i.u j.u
        set_space r0 fragment
        double_buffer k.o 3 xs ys ahead=1 pending=1
        """,
        """
        func f(x: in f32[48], y: in f32[48], z: out f32[16]) {
          for i.o in 1 block {
            alloc r0: fragment f32[16]
            %0: f32 = -0.0
            for i.t in 2 thread {
              for j.t in 2 thread {
                for i.u in 2 unroll {
                  for j.u in 2 unroll {
                    r0[8*i.t + 4*i.u + 2*j.t + j.u] = %0
                  }
                }
              }
            }
            alloc ys: shared f32[48]
            alloc xs: shared f32[48]
            for k.o.f in 1 unroll {
              for ys.0 in 4 thread {
                for ys.1 in 4 unroll {
                  %2_1_1: f32 = y[4*ys.0 + ys.1]
                  ys[4*ys.0 + ys.1] later = %2_1_1
                }
              }
              for xs.0 in 4 thread {
                for xs.1 in 4 unroll {
                  %1_1_1: f32 = x[12*xs.0 + xs.1]
                  xs[4*xs.0 + xs.1] later = %1_1_1
                }
              }
              commit
            }
            for k.o in 3 {
              wait 0
              wait products 1
              barrier
              for i.t in 2 thread by 4x4x4 {
                for j.t in 2 thread {
                  for i.u in 2 unroll {
                    for j.u in 2 unroll {
                      for k in 4 {
                        %1: f32 = xs[8*i.t + 4*i.u + k + 16*k.o]
                        %2: f32 = ys[2*j.t + j.u + 4*k + 16*k.o]
                        r0[8*i.t + 4*i.u + 2*j.t + j.u] later add= %1 * %2
                      }
                    }
                  }
                }
              }
              commit products
              if 0 <= k.o < 2 {
                for ys.0 in 4 thread {
                  for ys.1 in 4 unroll {
                    %2_1_2: f32 = y[16*k.o + 4*ys.0 + ys.1 + 16]
                    ys[16*k.o + 4*ys.0 + ys.1 + 16] later = %2_1_2
                  }
                }
              }
              if 0 <= k.o < 2 {
                for xs.0 in 4 thread {
                  for xs.1 in 4 unroll {
                    %1_1_2: f32 = x[4*k.o + 12*xs.0 + xs.1 + 4]
                    xs[16*k.o + 4*xs.0 + xs.1 + 16] later = %1_1_2
                  }
                }
              }
              commit
            }
            wait products 0
            barrier
            for i.t in 2 thread {
              for j.t in 2 thread {
                for i.u in 2 unroll {
                  for j.u in 2 unroll {
                    %3: f32 = r0[8*i.t + 4*i.u + 2*j.t + j.u]
                    z[8*i.t + 4*i.u + 2*j.t + j.u] = %3
                  }
                }
              }
            }
          }
        }
        """,
    ),
    "tensorize: products by an instruction, of factors in swizzled lines": (
        """
        func f(x: in f32[64], y: in f32[64], z: out f32[64]) {
          for i in 8 parallel {
            for j in 8 parallel {
              alloc r0: register f32[1]
              %0: f32 = -0.0
              r0[0] = %0
              for k in 8 {
                %1: f32 = x[8*i + k]
                %2: f32 = y[j + 8*k]
                r0[0] add= %1 * %2
              }
              %3: f32 = r0[0]
              %4: f32 = neg(%3)
              z[8*i + j] = %4
            }
          }
        }
        """,
        """
        split i b i2 8
        bind b block
        serialize i2 j
        distribute i2 j space=scratch scalars=repeat
        reorder k i2 j
        split k k.o k.i 4
        reorder k.o i2 j k.i
        precompute %1 k.o xs i2,k.i space=shared swizzle=1
        double_buffer k.o 2 xs
        tensorize i2 8x8x4
        """,
        """
        func f(x: in f32[64], y: in f32[64], z: out f32[64]) {
          for b in 1 block {
            alloc r0: scratch f32[64]
            %0: f32 = -0.0
            for i2 in 8 {
              for j in 8 {
                r0[8*i2 + j] = %0
              }
            }
            alloc xs: shared f32[64] swizzle 4
            for k.o.f in 1 unroll {
              for xs.0 in 8 {
                for xs.1 in 4 {
                  %1_1_1: f32 = x[8*xs.0 + xs.1]
                  xs[4*xs.0 + xs.1] later = %1_1_1
                }
              }
              commit
            }
            for k.o in 2 {
              wait 0
              barrier
              if 0 <= k.o < 1 {
                for xs.0 in 8 {
                  for xs.1 in 4 {
                    %1_1_2: f32 = x[4*k.o + 8*xs.0 + xs.1 + 4]
                    xs[32*k.o + 4*xs.0 + xs.1 + 32] later = %1_1_2
                  }
                }
              }
              commit
              for i2 in 8 by 8x8x4 {
                for j in 8 {
                  for k.i in 4 {
                    %1: f32 = xs[4*i2 + k.i + 32*k.o]
                    %2: f32 = y[j + 8*k.i + 32*k.o]
                    r0[8*i2 + j] add= %1 * %2
                  }
                }
              }
            }
            barrier
            for i2 in 8 {
              for j in 8 {
                %3: f32 = r0[8*i2 + j]
                %4: f32 = neg(%3)
                z[8*i2 + j] = %4
              }
            }
          }
        }
        """,
    ),
    "double_buffer: more copies than iterations": (
        """
        func f(x: in f32[12], y: in f32[12], z: out f32[6]) {
          for b in 1 block {
            for k in 3 {
              alloc s: shared f32[4]
              for t in 2 thread {
                for u in 2 unroll {
                  %0: f32 = x[4*k + t + 2*u]
                  %1: f32 = exp(%0)
                  s[t + 2*u] = %1
                }
              }
              alloc p: shared f32[4]
              for t in 2 thread {
                for u in 2 unroll {
                  %2: f32 = y[4*k + 2*t + u]
                  p[2*t + u] = %2
                }
              }
              barrier
              for t in 2 thread {
                %3: f32 = s[-1*t + 3]
                %4: f32 = p[-2*t + 2]
                %5: f32 = add(%3, %4)
                z[2*k + t] = %5
              }
              barrier
            }
          }
        }
        """,
        """
        double_buffer k 5 p
        """,
        """
        func f(x: in f32[12], y: in f32[12], z: out f32[6]) {
          for b in 1 block {
            alloc s: shared f32[20]
            alloc p: shared f32[20]
            for k.f in 3 unroll {
              for t in 2 thread {
                for u in 2 unroll {
                  %0_1: f32 = x[4*k.f + t + 2*u]
                  %1_1: f32 = exp(%0_1)
                  s[4*k.f + t + 2*u] = %1_1
                }
              }
              for t in 2 thread {
                for u in 2 unroll {
                  %2_1: f32 = y[4*k.f + 2*t + u]
                  p[4*k.f + 2*t + u] later = %2_1
                }
              }
              commit
            }
            commit
            for k in 3 {
              wait 3
              barrier
              commit
              for t in 2 thread {
                %3: f32 = s[4*k + -1*t + 3]
                %4: f32 = p[4*k + -2*t + 2]
                %5: f32 = add(%3, %4)
                z[2*k + t] = %5
              }
            }
            barrier
          }
        }
        """,
    ),
}
