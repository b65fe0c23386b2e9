// Continual Adam on the CPU: one pass over memory for all parameters, of one group or several.
//
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   p = p - size (m + r1 m_c) / (sqrt(v + r2 v_c) / s + eps)
//
// and with SECOND_SEEN, where v_c = 0, k v in place of v + r2 v_c.
//
// v_c may be kept in one byte, as the code of its logarithm.
//
// The table has eleven columns of n entries: addresses of p, m, v, v_c, m_c, step, past_steps, then
// the number of elements, two numbers that random bits are made of at a boundary, and the addresses
// of the gradients, which change from step to step.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

enum Flag {
  DECOUPLED = 1,
  MAXIMIZE = 2,
  FIRST_TASK = 4,
  SECOND_EMA = 8,
  SECOND_TASK = 16,
  FIRST_EMA = 32,
  SECOND_SEEN = 64,  // with SECOND_TASK
  PAST_BYTE = 128    // v_c is a code of its logarithm
};
enum Past { NONE, ALL, SEEN };  // of which coordinates the second moment has a past
enum Scalar { LR, BETA1, BETA2, BETA3, EPS, DECAY, SCALARS };
enum Column { P, M, V, PAST_V, PAST_M, STEP, PAST_STEPS, SIZE, KEY, PERIOD, G };

constexpr int64_t GRAIN = 1 << 15;  // elements worth a thread
constexpr int64_t LINES = 4;        // cache lines between prefetches
constexpr int64_t AHEAD = 16;       // cache lines that a prefetch runs ahead

// Five streams at once are more than the hardware's own prefetchers keep up with. A line that will
// be written is asked for as such, which saves a second request for it.
template <class T, bool WRITE, class X> inline void prefetch(const X* at) {
#if defined(__GNUC__)
  constexpr int64_t SHARE = sizeof(T) / sizeof(X);  // lines of T with the elements of one of X
  const char* first = reinterpret_cast<const char*>(at) + 64 * AHEAD / SHARE;
  for (int64_t line = 0; line < std::max<int64_t>(1, LINES / SHARE); ++line)
    __builtin_prefetch(first + 64 * line, WRITE);
#endif
}

// The codes of codes.py: code + SHIFT = 3 exponent + digit, with the exponent of float32.
constexpr int32_t SHIFT = 3 * 127 - 181;
constexpr int32_t DIGIT_1 = 0x214518, DIGIT_2 = 0x4B2FF5;  // of 2^(1/3) and 2^(2/3)

inline float as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t as_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float value_of(int32_t code) {
  const int32_t place = code + SHIFT, exponent = place * 171 >> 9;  // place / 3
  const int32_t digit = place - 3 * exponent;
  const int32_t rest = digit == 0 ? 0 : digit == 1 ? DIGIT_1 : DIGIT_2;
  return as_float(code == 0 ? 0 : static_cast<uint32_t>(exponent << 23 | rest));
}

// v_c in the type of the arithmetic: where it is, or made of its codes.
template <class T> inline const T* values(const T* kept, int64_t, T*) { return kept; }
template <class T> inline const T* values(const uint8_t* codes, int64_t count, T* into) {
  for (int64_t j = 0; j < count; ++j) into[j] = value_of(codes[j]);
  return into;
}

struct Table {
  const int64_t* cells;
  int64_t n;
  template <class T> T* at(Column column, int64_t i) const {
    return reinterpret_cast<T*>(static_cast<intptr_t>(cells[column * n + i]));
  }
  int64_t number(Column column, int64_t i) const { return cells[column * n + i]; }
  int64_t size(int64_t i) const { return number(SIZE, i); }
};

// What is the same for all elements of a parameter.
template <class T> struct Factors {
  T grad, decay, l2, weight1, beta2, weight2, share1, share2, unseen, scale, eps, size;
};

// A block goes in two loops: a processor looks ahead over so many instructions only, and one loop
// with a root and a division in a row would keep it waiting for them. A past of another type is
// read in a third one, as compilers do badly with a loop over types of many widths.
template <class T, bool L2, bool FIRST, Past SECOND, class X>
void update(const Table& table, int64_t i, int64_t begin, int64_t end, const Factors<T>& f) {
  constexpr int64_t BLOCK = LINES * 64 / sizeof(T);
  alignas(64) T root[BLOCK], read[BLOCK];
  const Factors<T> k = f;
  for (int64_t start = begin; start < end; start += BLOCK) {
    T* __restrict p = table.at<T>(P, i) + start;
    T* __restrict m = table.at<T>(M, i) + start;
    T* __restrict v = table.at<T>(V, i) + start;
    const X* __restrict kept = table.at<X>(PAST_V, i) + start;
    const T* __restrict past_m = table.at<T>(PAST_M, i) + start;
    const T* __restrict g = table.at<T>(G, i) + start;
    prefetch<T, true>(p);
    prefetch<T, true>(m);
    prefetch<T, true>(v);
    prefetch<T, false>(g);
    if (SECOND != NONE) prefetch<T, false>(kept);
    const int64_t count = std::min(BLOCK, end - start);
    const T* __restrict past_v = SECOND == NONE ? read : values(kept, count, read);

    for (int64_t j = 0; j < count; ++j) {
      T grad = g[j] * k.grad;
      if (L2) grad = grad + k.l2 * (p[j] * k.decay);
      T second = v[j] * k.beta2 + grad * grad * k.weight2;
      m[j] = m[j] + (grad - m[j]) * k.weight1;
      v[j] = second;
      if (SECOND == ALL) second = second + k.share2 * past_v[j];
      if (SECOND == SEEN)
        second = past_v[j] == 0 ? second * k.unseen : second + k.share2 * past_v[j];
      root[j] = std::sqrt(second);
    }
    for (int64_t j = 0; j < count; ++j) {
      const T first = FIRST ? m[j] + k.share1 * past_m[j] : m[j];
      p[j] = p[j] * k.decay - k.size * first / (root[j] * k.scale + k.eps);
    }
  }
}

template <class T>
using Update = void (*)(const Table&, int64_t, int64_t, int64_t, const Factors<T>&);

template <class T, bool L2, bool FIRST, class X> Update<T> choose(Past second) {
  static const Update<T> all[3] = {update<T, L2, FIRST, NONE, T>, update<T, L2, FIRST, ALL, X>,
                                   update<T, L2, FIRST, SEEN, X>};
  return all[second];
}

template <class T, bool L2, bool FIRST> Update<T> choose(Past second, int flags) {
  if (flags & PAST_BYTE) return choose<T, L2, FIRST, uint8_t>(second);
  return choose<T, L2, FIRST, T>(second);
}

template <class T> Update<T> choose(bool l2, Past second, int flags) {
  const bool first = flags & FIRST_TASK;
  if (l2)
    return first ? choose<T, true, true>(second, flags) : choose<T, true, false>(second, flags);
  return first ? choose<T, false, true>(second, flags) : choose<T, false, false>(second, flags);
}

template <class T>
Factors<T> factors(double t, double c, const double* x, int flags, double grad_scale) {
  const bool decoupled = flags & DECOUPLED;
  const double correction1 = 1 - std::pow(x[BETA1], t);
  double correction2 = 1 - std::pow(x[BETA2], flags & SECOND_EMA ? t + c : t);
  double size = x[LR] * (1 - std::pow(x[BETA3], t)) / correction1;
  Factors<T> f{};
  f.grad = T((flags & MAXIMIZE ? -1.0 : 1.0) / grad_scale);
  f.decay = T(decoupled ? 1 - x[LR] * x[DECAY] : 1.0);
  f.l2 = T(decoupled ? 0.0 : x[DECAY]);
  f.weight1 = T(1 - x[BETA1]);
  f.beta2 = T(x[BETA2]);
  f.weight2 = T(1 - x[BETA2]);
  if (flags & FIRST_TASK) {
    f.share1 = T(c * correction1 / t);
    size *= t / (t + c);
  }
  if (flags & SECOND_TASK) {
    f.share2 = T(c * correction2 / t);
    f.unseen = T((t + c) / t);
    correction2 *= (t + c) / t;
  }
  f.scale = T(1 / std::sqrt(correction2));
  f.eps = T(x[EPS]);
  f.size = T(size);
  return f;
}

// Calls work(i, begin, end) so that each thread gets an equal share of all elements.
template <class Work> void share_out(const Table& table, int threads, const Work& work) {
  int64_t total = 0;
  for (int64_t i = 0; i < table.n; ++i) total += table.size(i);
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, total / GRAIN));
#pragma omp parallel for num_threads(parts) schedule(static) if (parts > 1)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t from = total * part / parts, to = total * (part + 1) / parts;
    int64_t start = 0;
    for (int64_t i = 0; i < table.n && start < to; ++i) {
      const int64_t size = table.size(i);
      const int64_t begin = std::max<int64_t>(from - start, 0), end = std::min(to - start, size);
      if (begin < end) work(i, begin, end);
      start += size;
    }
  }
}

// Parameter groups lie one after the other in the table: group k has rows ends[k-1] to ends[k],
// the scalars x + SCALARS k and flags[k].
template <class T>
void step(const Table& table, int groups, const int64_t* ends, const double* x, const int* flags,
          const float* grad_scale, const float* found_inf, int threads) {
  if (found_inf && *found_inf != 0) return;
  std::vector<Factors<T>> all(table.n);
  std::vector<Update<T>> updates(table.n);
  for (int64_t k = 0, i = 0; k < groups; ++k, x += SCALARS) {
    const int flag = flags[k];
    const bool l2 = !(flag & DECOUPLED) && x[DECAY] != 0;
    const Past second = flag & SECOND_SEEN ? SEEN : flag & SECOND_TASK ? ALL : NONE;
    const Update<T> update = choose<T>(l2, second, flag);
    double last_t = -1, last_c = -1;
    Factors<T> last;
    for (; i < ends[k]; ++i) {
      if (!table.number(G, i)) continue;  // no gradient
      const double t = *table.at<float>(STEP, i) += 1, c = *table.at<float>(PAST_STEPS, i);
      if (t != last_t || c != last_c)
        last = factors<T>(t, c, x, flag, grad_scale ? *grad_scale : 1.0);
      all[i] = last;
      updates[i] = update;
      last_t = t;
      last_c = c;
    }
  }
  share_out(table, threads, [&](int64_t i, int64_t begin, int64_t end) {
    if (updates[i]) updates[i](table, i, begin, end, all[i]);
  });
}

// past = (t now / (1 - beta^t) + c past) / (t + c); `now` starts again from zero.
template <class T>
void fold(T* __restrict past, T* __restrict now, int64_t begin, int64_t end, double t, double c,
          double beta) {
  const T a = T(c / (t + c)), b = T(t / ((t + c) * (1 - std::pow(beta, t))));
  for (int64_t j = begin; j < end; ++j) {
    past[j] = a * past[j] + b * now[j];
    now[j] = 0;
  }
}

// A bijection of 32-bit numbers in which every bit depends on every other, as in past.py.
inline uint32_t mixed(uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

// One of the two codes next to a value, by 32 random bits; see codes.py.
inline uint32_t round_at_random(float value, uint32_t random) {
  const uint32_t bits = as_bits(value);
  const int32_t rest = bits & 0x7FFFFF, exponent = bits & 0x7F800000;
  const int32_t first = rest >= DIGIT_1, second = rest >= DIGIT_2;
  const int32_t lower = second ? DIGIT_2 : first ? DIGIT_1 : 0;
  const int32_t upper = second ? 1 << 23 : first ? DIGIT_2 : DIGIT_1;
  const float low = as_float(exponent + lower), gap = as_float(exponent + upper) - low;
  const float share = static_cast<float>(static_cast<int32_t>(random >> 8));
  const int32_t up = share * gap < (value - low) * 16777216.0f;
  int32_t code = 3 * (exponent >> 23) + first + second + up - SHIFT;
  code = code < 1 ? 1 : code;
  code = code > 255 ? 255 : code;
  return bits == 0 ? 0 : static_cast<uint32_t>(code);
}

// As `fold`, in double, for codes. Random bits depend on `key`, c and the element, which is counted
// anew after each `period` of them.
template <class T>
void fold_codes(uint8_t* __restrict past, T* __restrict now, int64_t begin, int64_t end, double t,
                double c, double beta, uint32_t key, int64_t period) {
  const double a = c / (t + c), b = t / ((t + c) * (1 - std::pow(beta, t)));
  const uint32_t word = mixed(key ^ static_cast<uint32_t>(static_cast<int64_t>(c)));
  constexpr int64_t BLOCK = 512;
  float value[BLOCK];
  uint32_t rounded[BLOCK];
  while (begin < end) {
    const int64_t place = period ? begin % period : begin;
    const int64_t stop = period ? std::min(end, begin + period - place) : end;
    const uint32_t first = static_cast<uint32_t>(place) + word;
    const int64_t count = std::min(stop - begin, BLOCK);
    // In passes of one width each, which compilers turn into vectors.
    values(past + begin, count, value);
    for (int64_t j = 0; j < count; ++j) {
      const double x = static_cast<float>(now[begin + j]), old = value[j];
      value[j] = static_cast<float>(a * old + b * x);
      now[begin + j] = 0;
    }
    for (int64_t j = 0; j < count; ++j)
      rounded[j] = round_at_random(value[j], mixed(first + static_cast<uint32_t>(j)));
    for (int64_t j = 0; j < count; ++j) past[begin + j] = static_cast<uint8_t>(rounded[j]);
    begin += count;
  }
}

// stepped[k]: how many parameters of group k had taken a step.
template <class T>
void end_task(const Table& table, int groups, const int64_t* ends, const double* x,
              const int* flags, int64_t* stepped, int threads) {
  const auto group_of = [&](int64_t i) { return std::upper_bound(ends, ends + groups, i) - ends; };
  share_out(table, threads, [&](int64_t i, int64_t begin, int64_t end) {
    const double t = *table.at<float>(STEP, i), c = *table.at<float>(PAST_STEPS, i);
    if (t == 0) return;
    const int64_t k = group_of(i);
    T *m = table.at<T>(M, i), *v = table.at<T>(V, i);
    if (flags[k] & FIRST_TASK)
      fold(table.at<T>(PAST_M, i), m, begin, end, t, c, x[SCALARS * k + BETA1]);
    else if (!(flags[k] & FIRST_EMA))
      std::fill(m + begin, m + end, T(0));
    const double beta2 = x[SCALARS * k + BETA2];
    if ((flags[k] & SECOND_TASK) && (flags[k] & PAST_BYTE))
      fold_codes(table.at<uint8_t>(PAST_V, i), v, begin, end, t, c, beta2,
                 static_cast<uint32_t>(table.number(KEY, i)), table.number(PERIOD, i));
    else if (flags[k] & SECOND_TASK)
      fold(table.at<T>(PAST_V, i), v, begin, end, t, c, beta2);
    else if (!(flags[k] & SECOND_EMA))
      std::fill(v + begin, v + end, T(0));
  });
  for (int64_t i = 0; i < table.n; ++i) {
    float& t = *table.at<float>(STEP, i);
    stepped[group_of(i)] += t > 0;
    *table.at<float>(PAST_STEPS, i) += t;
    t = 0;
  }
}

}  // namespace

#define LONGTAIL_EXPORT(T)                                                                     \
  extern "C" void longtail_step_##T(int64_t n, const int64_t* cells, int groups,               \
                                    const int64_t* ends, const double* x, const int* flags,    \
                                    const float* grad_scale, const float* found_inf,           \
                                    int threads) {                                             \
    step<T>({cells, n}, groups, ends, x, flags, grad_scale, found_inf, threads);               \
  }                                                                                            \
  extern "C" void longtail_end_task_##T(int64_t n, const int64_t* cells, int groups,           \
                                        const int64_t* ends, const double* x,                  \
                                        const int* flags, int64_t* stepped, int threads) {     \
    end_task<T>({cells, n}, groups, ends, x, flags, stepped, threads);                         \
  }
LONGTAIL_EXPORT(float)
LONGTAIL_EXPORT(double)
