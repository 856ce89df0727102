"""Functions of the loop level that tests of schedules begin with."""

from __future__ import annotations

NEST = """
func f(x: in f32[12], y: out f32[12]) {
  for i in 3 parallel {
    for j in 4 {
      %0: f32 = x[4*i + j]
      %1: f32 = neg(%0)
      y[4*i + j] = %1
    }
  }
}
"""
LINE = """
func f(x: in f32[10], y: out f32[10]) {
  for i in 10 {
    %0: f32 = x[i]
    %1: f32 = neg(%0)
    y[i] = %1
  }
}
"""
SHIFT = """
func f(x: in f32[11], y: out f32[10]) {
  for i in 10 {
    %0: f32 = x[i]
    %1: f32 = x[i + 1]
    %2: f32 = add(%0, %1)
    y[i] = %2
  }
}
"""
ROLL = """
func f(x: in f32[10], y: out f32[10]) {
  for i in 10 parallel {
    %0: f32 = x[i + -1] if 1 <= i < 10
    %1: f32 = x[i + 9] if 0 <= i < 1
    %2: bool = inside 1 <= i < 10
    %3: f32 = select(%2, %0, %1)
    y[i] = %3
  }
}
"""
SUM = """
func f(x: in f32[24], y: out f32[1]) {
  %0: f32 = -0.0
  y[0] = %0
  for i in 24 {
    %1: f32 = x[i]
    y[0] add= %1
  }
}
"""
ROWS = """
func f(x: in f32[15], y: out f32[5]) {
  for i in 5 parallel {
    alloc r: register f32[1]
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
"""
CHUNKS = """
func f(x: in f32[10], y: out f32[4]) {
  for c in 4 parallel {
    alloc r: register f32[1]
    %0: f32 = -0.0
    r[0] = %0
    for i in 3 until -3*c + 10 {
      %1: f32 = x[3*c + i]
      r[0] add= %1
    }
    %2: f32 = r[0]
    y[c] = %2
  }
}
"""
COND = """
func f(x: in f32[4], y: out f32[12]) {
  for i in 3 {
    for j in 4 {
      %0: f32 = 0.0
      y[4*i + j] = %0
    }
  }
  for i in 3 {
    for j in 4 {
      if 1 <= i < 3 {
        %1: f32 = x[i]
        %2: f32 = neg(%1)
        y[4*i + j] = %2
      }
    }
  }
}
"""
MASKED = """
func f(x: in f32[10], y: out f32[10]) {
  for i in 10 {
    %0: f32 = x[i] if 0 <= i < 10
    %1: f32 = neg(%0)
    y[i] = %1
  }
}
"""
PLAIN = """
func f(x: in f32[12], y: out f32[12]) {
  for i in 3 {
    for j in 4 {
      %0: f32 = x[4*i + j]
      %1: f32 = neg(%0)
      y[4*i + j] = %1
    }
  }
}
"""
BESIDE = """
func f(x: in f32[15], y: out f32[5]) {
  for k in 5 {
    %5: f32 = 0.0
    y[k] = %5
  }
  for i in 5 {
    %1: f32 = x[3*i]
    for j in 3 {
      %2: f32 = x[3*i + j]
      %3: f32 = sub(%2, %1)
      y[i] add= %3
    }
  }
}
"""
WITHIN = """
func f(x: in f32[15], y: out f32[5]) {
  for i in 5 parallel {
    alloc r: register f32[1]
    %0: f32 = -0.0
    r[0] = %0
    for j in 3 {
      %1: f32 = x[3*i]
      %2: f32 = x[3*i + j]
      %3: f32 = sub(%2, %1)
      r[0] add= %3
    }
    %4: f32 = r[0]
    y[i] = %4
  }
}
"""
BLOCKS = """
func f(x: in f32[20], y: out f32[5]) {
  for i in 5 block {
    alloc r: register f32[1]
    %0: f32 = -0.0
    r[0] = %0
    %1: f32 = x[4*i]
    for j in 4 {
      %2: f32 = x[4*i + j]
      %3: f32 = sub(%2, %1)
      r[0] add= %3
    }
    %4: f32 = r[0]
    y[i] = %4
  }
}
"""
BLOCK_ROWS = """
func f(x: in f32[15], y: out f32[5]) {
  for i in 5 block {
    alloc r: register f32[1]
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
"""
