// Continual Adam on the CPU: one pass over memory for all parameters, of one group or several.
//
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   p = p - size (m + r1 m_c) / (sqrt(v + r2 v_c) / s + eps)
//
// and with SECOND_SEEN, where v_c = 0, k v in place of v + r2 v_c.
//
// The table has nine columns of n entries: addresses of p, m, v, v_c, m_c, step, past_steps, then
// the number of elements, then the addresses of the gradients, which change from step to step.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

enum Flag {
  DECOUPLED = 1,
  MAXIMIZE = 2,
  FIRST_TASK = 4,
  SECOND_EMA = 8,
  SECOND_TASK = 16,
  FIRST_EMA = 32,
  SECOND_SEEN = 64  // with SECOND_TASK
};
enum Past { NONE, ALL, SEEN };  // of which coordinates the second moment has a past
enum Scalar { LR, BETA1, BETA2, BETA3, EPS, DECAY, SCALARS };
enum Column { P, M, V, PAST_V, PAST_M, STEP, PAST_STEPS, SIZE, G };

constexpr int64_t GRAIN = 1 << 15;  // elements worth a thread
constexpr int64_t LINES = 4;        // cache lines between prefetches
constexpr int64_t AHEAD = 16;       // cache lines that a prefetch runs ahead

// Five streams at once are more than the hardware's own prefetchers keep up with. A line that will
// be written is asked for as such, which saves a second request for it.
template <bool WRITE, class T> inline void prefetch(const T* at) {
#if defined(__GNUC__)
  for (int64_t line = 0; line < LINES; ++line)
    __builtin_prefetch(reinterpret_cast<const char*>(at) + 64 * (AHEAD + line), WRITE);
#endif
}

struct Table {
  const int64_t* cells;
  int64_t n;
  template <class T> T* at(Column column, int64_t i) const {
    return reinterpret_cast<T*>(static_cast<intptr_t>(cells[column * n + i]));
  }
  int64_t size(int64_t i) const { return cells[SIZE * n + i]; }
};

// What is the same for all elements of a parameter.
template <class T> struct Factors {
  T grad, decay, l2, weight1, beta2, weight2, share1, share2, unseen, scale, eps, size;
};

template <class T, bool L2, bool FIRST, Past SECOND>
void update(const Table& table, int64_t i, int64_t begin, int64_t end, const Factors<T>& f) {
  T* __restrict p = table.at<T>(P, i);
  T* __restrict m = table.at<T>(M, i);
  T* __restrict v = table.at<T>(V, i);
  const T* __restrict past_v = table.at<T>(PAST_V, i);
  const T* __restrict past_m = table.at<T>(PAST_M, i);
  const T* __restrict g = table.at<T>(G, i);
  const Factors<T> k = f;
  constexpr int64_t BLOCK = LINES * 64 / sizeof(T);
  for (int64_t start = begin; start < end; start += BLOCK) {
    prefetch<true>(p + start);
    prefetch<true>(m + start);
    prefetch<true>(v + start);
    prefetch<false>(g + start);
    if (SECOND != NONE) prefetch<false>(past_v + start);
    const int64_t stop = std::min(start + BLOCK, end);
    for (int64_t j = start; j < stop; ++j) {
      const T value = p[j] * k.decay;
      T grad = g[j] * k.grad;
      if (L2) grad += k.l2 * value;
      T first = m[j] + (grad - m[j]) * k.weight1;
      T second = v[j] * k.beta2 + grad * grad * k.weight2;
      m[j] = first;
      v[j] = second;
      if (FIRST) first += k.share1 * past_m[j];
      if (SECOND == ALL) second += k.share2 * past_v[j];
      if (SECOND == SEEN)
        second = past_v[j] == 0 ? second * k.unseen : second + k.share2 * past_v[j];
      p[j] = value - k.size * first / (std::sqrt(second) * k.scale + k.eps);
    }
  }
}

template <class T> using Update = void (*)(const Table&, int64_t, int64_t, int64_t, const Factors<T>&);

template <class T, bool L2, bool FIRST> Update<T> choose(Past second) {
  static const Update<T> all[3] = {update<T, L2, FIRST, NONE>, update<T, L2, FIRST, ALL>,
                                   update<T, L2, FIRST, SEEN>};
  return all[second];
}

template <class T> Update<T> choose(bool l2, bool first, Past second) {
  if (l2) return first ? choose<T, true, true>(second) : choose<T, true, false>(second);
  return first ? choose<T, false, true>(second) : choose<T, false, false>(second);
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
    const Update<T> update = choose<T>(l2, flag & FIRST_TASK, second);
    double last_t = -1, last_c = -1;
    for (; i < ends[k]; ++i) {
      const double t = *table.at<float>(STEP, i) += 1, c = *table.at<float>(PAST_STEPS, i);
      all[i] = t == last_t && c == last_c
                   ? all[i - 1]
                   : factors<T>(t, c, x, flag, grad_scale ? *grad_scale : 1.0);
      updates[i] = update;
      last_t = t;
      last_c = c;
    }
  }
  share_out(table, threads, [&](int64_t i, int64_t begin, int64_t end) {
    updates[i](table, i, begin, end, all[i]);
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

// How many parameters had taken a step.
template <class T> int end_task(const Table& table, const double* x, int flags, int threads) {
  share_out(table, threads, [&](int64_t i, int64_t begin, int64_t end) {
    const double t = *table.at<float>(STEP, i), c = *table.at<float>(PAST_STEPS, i);
    if (t == 0) return;
    T *m = table.at<T>(M, i), *v = table.at<T>(V, i);
    if (flags & FIRST_TASK)
      fold(table.at<T>(PAST_M, i), m, begin, end, t, c, x[BETA1]);
    else if (!(flags & FIRST_EMA))
      std::fill(m + begin, m + end, T(0));
    if (flags & SECOND_TASK)
      fold(table.at<T>(PAST_V, i), v, begin, end, t, c, x[BETA2]);
    else if (!(flags & SECOND_EMA))
      std::fill(v + begin, v + end, T(0));
  });
  int stepped = 0;
  for (int64_t i = 0; i < table.n; ++i) {
    float& t = *table.at<float>(STEP, i);
    stepped += t > 0;
    *table.at<float>(PAST_STEPS, i) += t;
    t = 0;
  }
  return stepped;
}

}  // namespace

extern "C" {

void longtail_step_float(int64_t n, const int64_t* cells, int groups, const int64_t* ends,
                         const double* x, const int* flags, const float* grad_scale,
                         const float* found_inf, int threads) {
  step<float>({cells, n}, groups, ends, x, flags, grad_scale, found_inf, threads);
}

void longtail_step_double(int64_t n, const int64_t* cells, int groups, const int64_t* ends,
                         const double* x, const int* flags, const float* grad_scale,
                         const float* found_inf, int threads) {
  step<double>({cells, n}, groups, ends, x, flags, grad_scale, found_inf, threads);
}

int longtail_end_task_float(int64_t n, const int64_t* cells, const double* x, int flags,
                            int threads) {
  return end_task<float>({cells, n}, x, flags, threads);
}

int longtail_end_task_double(int64_t n, const int64_t* cells, const double* x, int flags,
                             int threads) {
  return end_task<double>({cells, n}, x, flags, threads);
}

}  // extern "C"
